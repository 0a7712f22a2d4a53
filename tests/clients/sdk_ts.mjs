// A TypeScript SDK client: `node sdk_ts.mjs 1|2 URL legacy|modern`. Prints one JSON object.
const [generation, url, era] = process.argv.slice(2);
const v1 = generation === "1";
const { Client } = await import(v1 ? "@modelcontextprotocol/sdk/client/index.js" : "@modelcontextprotocol/client");
const { StreamableHTTPClientTransport } = await import(
  v1 ? "@modelcontextprotocol/sdk/client/streamableHttp.js" : "@modelcontextprotocol/client"
);

const options = era === "modern" ? { versionNegotiation: { mode: { pin: "2026-07-28" } } } : {};
options.capabilities = { elicitation: {} };
const client = new Client({ name: `ts${generation}`, version: "1" }, options);
const elicited = v1 ? (await import("@modelcontextprotocol/sdk/types.js")).ElicitRequestSchema : "elicitation/create";
client.setRequestHandler(elicited, async () => ({ action: "accept", content: { name: "Ada" } }));
const transport = new StreamableHTTPClientTransport(new URL(url));
await client.connect(transport);
const text = async (name, args = {}) => (await client.callTool({ name, arguments: args })).content[0].text;
const { tools } = await client.listTools();
const answer = {
  tools: tools.map((tool) => tool.name),
  whoami: JSON.parse(await text("whoami")),
  counts: [await text("count"), await text("count")],
  ask: await text("ask"),
  slow: await text("slow", { steps: 2, interval_s: 0 }),
};
if (transport.terminateSession && era === "legacy") await transport.terminateSession();
await client.close();
console.log(JSON.stringify(answer));
