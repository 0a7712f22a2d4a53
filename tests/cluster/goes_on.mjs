// A TypeScript SDK client: `node goes_on.mjs URL`. Prints what became of a call, of one that fails, and of one after it.
const [url] = process.argv.slice(2);
const { Client } = await import("@modelcontextprotocol/sdk/client/index.js");
const { StreamableHTTPClientTransport } = await import("@modelcontextprotocol/sdk/client/streamableHttp.js");

const client = new Client({ name: "ts", version: "1" }, {});
await client.connect(new StreamableHTTPClientTransport(new URL(url)));
const told = [];
for (const step of ["work", "die", "work"])
  told.push(
    await client
      .callTool({ name: "work", arguments: { step } })
      .then((result) => result.content[0].text)
      .catch((error) => String(error)),
  );
console.log(JSON.stringify(told));
process.exit(0);
