// Makes so many calls of a legacy session with Node's fetch, and as many of a modern one; prints the last answers.
const [url, calls] = process.argv.slice(2);
const accept = "application/json, text/event-stream";
const post = (body, more) =>
  fetch(url, {
    method: "POST",
    body: JSON.stringify({ jsonrpc: "2.0", ...body }),
    headers: { "content-type": "application/json", accept, ...more },
  });

const clientInfo = { name: "fetch", version: "1" };
const params = { protocolVersion: "2025-11-25", capabilities: {}, clientInfo };
const opened = await post({ id: 0, method: "initialize", params });
await opened.text();
const legacy = { "mcp-session-id": opened.headers.get("mcp-session-id"), "mcp-protocol-version": "2025-11-25" };
await (await post({ method: "notifications/initialized" }, legacy)).text();

const name = "echo";
let answer;
for (let id = 1; id <= Number(calls); id++) {
  answer = await (await post({ id, method: "tools/call", params: { name, arguments: { text: "x".repeat(id) } } }, legacy)).json();
}
console.log(JSON.stringify(answer));

const key = "io.modelcontextprotocol/";
const _meta = { [`${key}protocolVersion`]: "2026-07-28", [`${key}clientInfo`]: clientInfo, [`${key}clientCapabilities`]: {} };
let modern = { "mcp-protocol-version": "2026-07-28", "mcp-method": "tools/call", "mcp-name": name };
for (let id = 1; id <= Number(calls); id++) {
  const got = await post({ id, method: "tools/call", params: { name, arguments: { text: "y".repeat(id) }, _meta } }, modern);
  answer = await got.json();
  modern = { "mcp-gateway-session": got.headers.get("mcp-gateway-session") ?? modern["mcp-gateway-session"], ...modern };
}
console.log(JSON.stringify(answer));
