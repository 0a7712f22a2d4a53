// The TypeScript SDKs: `node typescript.mjs SPECIFICATION 1|2|2-echo legacy|modern`. See driver.py.
const [text, generation, era] = process.argv.slice(2);
const v1 = generation === "1";
const { Client } = await import(v1 ? "@modelcontextprotocol/sdk/client/index.js" : "@modelcontextprotocol/client");
const { StreamableHTTPClientTransport } = await import(
  v1 ? "@modelcontextprotocol/sdk/client/streamableHttp.js" : "@modelcontextprotocol/client"
);

function echoingFetch() {
  let session = "new";
  return async (url, init = {}) => {
    const headers = new Headers(init.headers);
    headers.set("MCP-Gateway-Session", session);
    const response = await fetch(url, { ...init, headers });
    session = response.headers.get("MCP-Gateway-Session") ?? session;
    return response;
  };
}

async function connect(url, headers) {
  const options = era === "modern" ? { versionNegotiation: { mode: { pin: "2026-07-28" } } } : {};
  const client = new Client({ name: "table", version: "1" }, options);
  const sent = { requestInit: { headers } };
  const echoing = generation === "2-echo" ? { fetch: echoingFetch() } : {};
  const transport = new StreamableHTTPClientTransport(new URL(url), { ...sent, ...echoing });
  await client.connect(transport);
  return {
    count: async () => (await client.callTool({ name: "count", arguments: {} })).content[0].text,
    close: async () => {
      if (transport.terminateSession && era === "legacy") await transport.terminateSession();
      await client.close();
    },
  };
}

const answer = {};
for (const [mode, { url, one, two }] of Object.entries(JSON.parse(text))) {
  const [first, second] = await Promise.all([connect(url, one), connect(url, two)]);
  const counts = { one: [], two: [], again: [] };
  for (let n = 0; n < 3; n++) {
    const [a, b] = await Promise.all([first.count(), second.count()]);
    counts.one.push(a);
    counts.two.push(b);
  }
  await Promise.all([first.close(), second.close()]);
  const again = await connect(url, one);
  counts.again = [await again.count(), await again.count()];
  await again.close();
  answer[mode] = counts;
}
console.log(JSON.stringify(answer));
