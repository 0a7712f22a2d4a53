// A server of the TypeScript SDK with the skills of a folder: `node skills_server.mjs FOLDER [FILES PER PAGE]`.
import { McpServer } from "@modelcontextprotocol/server";
import { loadSkills } from "@modelcontextprotocol/server/ext/skills/node";
import { serveStdio } from "@modelcontextprotocol/server/stdio";

const [folder, pageSize] = process.argv.slice(2);
const skills = await loadSkills(folder, { pageSize: Number(pageSize ?? 100), cacheHint: { ttlMs: 5000, cacheScope: "public" } });
serveStdio(() => {
  const server = new McpServer({ name: "skills", version: "1" });
  skills.attach(server);
  return server;
});
