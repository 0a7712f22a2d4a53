// A TypeScript SDK client that has to log in: `node oauth_ts.mjs URL`. Prints where to log in, reads the code from stdin,
// and prints what the server says.
import { createInterface } from "node:readline/promises";
import { Client } from "@modelcontextprotocol/sdk/client/index.js";
import { StreamableHTTPClientTransport } from "@modelcontextprotocol/sdk/client/streamableHttp.js";

const kept = {};
const provider = {
  redirectUrl: "http://localhost:9/callback",
  clientMetadata: { client_name: "ts", redirect_uris: ["http://localhost:9/callback"], token_endpoint_auth_method: "none" },
  clientInformation: () => kept.client,
  saveClientInformation: (client) => void (kept.client = client),
  tokens: () => kept.tokens,
  saveTokens: (tokens) => void (kept.tokens = tokens),
  saveCodeVerifier: (verifier) => void (kept.verifier = verifier),
  codeVerifier: () => kept.verifier,
  redirectToAuthorization: (url) => console.log(url.href),
};
const connect = async (transport) => {
  const client = new Client({ name: "oauth-ts", version: "1" });
  await client.connect(transport);
  return client;
};
const at = new URL(process.argv[2]);
const first = new StreamableHTTPClientTransport(at, { authProvider: provider });
try {
  await connect(first);
  throw new Error("it was let in without a token");
} catch (error) {
  if (error.constructor.name !== "UnauthorizedError") throw error;
}
const code = await createInterface({ input: process.stdin }).question("");
await first.finishAuth(code);
const client = await connect(new StreamableHTTPClientTransport(at, { authProvider: provider }));
const text = async (name) => (await client.callTool({ name, arguments: {} })).content[0].text;
console.log(JSON.stringify({ whoami: JSON.parse(await text("whoami")), counts: [await text("count"), await text("count")] }));
await client.close();
process.exit(0);
