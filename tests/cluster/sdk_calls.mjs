// A TypeScript SDK client: `node sdk_calls.mjs URL`. Each line of stdin is a call; a line of stdout says what became of it.
import { createInterface } from "node:readline";

const [url] = process.argv.slice(2);
const { Client } = await import("@modelcontextprotocol/sdk/client/index.js");
const { StreamableHTTPClientTransport } = await import("@modelcontextprotocol/sdk/client/streamableHttp.js");

const client = new Client({ name: "ts", version: "1" }, {});
await client.connect(new StreamableHTTPClientTransport(new URL(url)));
for await (const line of createInterface({ input: process.stdin })) {
  const told = await client
    .callTool(JSON.parse(line))
    .then((result) => ({ text: result.content[0].text }))
    .catch((error) => ({ error: String(error) }));
  console.log(JSON.stringify(told));
}
process.exit(0);
