// The host side of the TypeScript SDK's Skills extension: `node skills_ts.mjs URL legacy|modern`. Prints one JSON object.
import { Client, StreamableHTTPClientTransport } from "@modelcontextprotocol/client";
import { SkillsClient } from "@modelcontextprotocol/client/ext/skills";

const [url, era] = process.argv.slice(2);
const options = era === "modern" ? { versionNegotiation: { mode: { pin: "2026-07-28" } } } : {};
const client = new Client({ name: "host", version: "1" }, options);
await client.connect(new StreamableHTTPClientTransport(new URL(url)));
const host = new SkillsClient(client);
const { skills, ttlMs } = await host.list();
const files = {};
const directories = {};
for (const skill of skills) {
  const { skill: again } = await host.get(skill.uri);
  if (JSON.stringify(again) !== JSON.stringify(skill)) throw new Error(`skills/get differs: ${JSON.stringify(again)}`);
  for (const { uri } of skill.resources) {
    const file = await host.read(skill, uri);
    if (!file.verified) throw new Error(`not verified: ${uri}`);
    files[uri] = file.text;
  }
  const root = skill.uri.replace(/\/SKILL\.md$/, "");
  if (host.directoryRead) {
    directories[root] = await host.readDirectory(root).then(({ resources }) => resources.map(({ uri }) => uri).sort(), ({ code }) => code);
  }
}
const unknown = await host.get("skill://none/SKILL.md").catch(({ code }) => code);
console.log(JSON.stringify({ skills: skills.map(({ uri }) => uri), ttlMs, files, directories, unknown, directoryRead: host.directoryRead }));
await client.close();
