// A certified OpenID provider as authorization server: `node authorization_server.mjs PORT RESOURCE TTL_S [RESOURCE TTL_S]...`
// Clients register themselves; whoever logs in is whom they say they are. Tokens for the first resource are exchanged
// for tokens of the others (RFC 8693). `/events` lists the tokens that it has given or refused, `/forget?person=NAME`
// removes an account. Says `ready` when it listens.
import { createPublicKey, verify } from "node:crypto";
import Provider, { errors } from "oidc-provider";

const [port, ...given] = process.argv.slice(2);
const issuer = `http://localhost:${port}`;
const lives = new Map(given.flatMap((name, at) => (at % 2 ? [] : [[name, Number(given[at + 1])]])));
const events = [];
const forgotten = new Set();

function resourceServer(asked) {
  if (!lives.has(asked)) throw new Error(`no such resource: ${asked}`);
  return { scope: "mcp", audience: asked, accessTokenFormat: "jwt", accessTokenTTL: lives.get(asked) };
}

const provider = new Provider(issuer, {
  scopes: ["openid", "offline_access", "mcp"],
  pkce: { required: () => true },
  issueRefreshToken: () => true,
  findAccount: (_, name) => (forgotten.has(name) ? undefined : { accountId: name, claims: () => ({ sub: name }) }),
  ttl: { Interaction: 60, Session: 600, Grant: 600, RefreshToken: 600 },
  features: {
    registration: { enabled: true },
    devInteractions: { enabled: true },
    resourceIndicators: {
      enabled: true,
      useGrantedResource: () => true,
      getResourceServerInfo: (_, asked) => resourceServer(asked),
    },
  },
});

async function subjectOf(token) {
  const [head, body, signature] = token.split(".");
  const [{ kid }, claims] = [head, body].map((part) => JSON.parse(Buffer.from(part, "base64url")));
  const { keys } = await (await fetch(`${issuer}/jwks`)).json();
  const key = createPublicKey({ key: keys.find((each) => each.kid === kid), format: "jwk" });
  const isOurs = verify("sha256", `${head}.${body}`, key, Buffer.from(signature, "base64url"));
  const isValid = isOurs && claims.aud === given[0] && Date.now() < claims.exp * 1000 && !forgotten.has(claims.sub);
  if (!isValid) throw new errors.InvalidGrant("not a token of an account");
  return claims.sub;
}

async function exchange(ctx) {
  const { client, params } = ctx.oidc;
  const accountId = await subjectOf(params.subject_token);
  const token = new provider.AccessToken({ accountId, client, gty: "exchange", scope: "mcp" });
  token.resourceServer = new provider.ResourceServer(params.resource, resourceServer(params.resource));
  ctx.oidc.entity("AccessToken", token);
  ctx.body = {
    access_token: await token.save(),
    issued_token_type: params.requested_token_type,
    token_type: "Bearer",
    expires_in: token.expiration,
  };
}

const names = ["subject_token", "subject_token_type", "requested_token_type", "resource"];
provider.registerGrantType("urn:ietf:params:oauth:grant-type:token-exchange", exchange, names);

function told({ oidc }, error) {
  const { accountId, aud } = oidc.entities.AccessToken ?? {};
  events.push({ grant: oidc.params?.grant_type, person: accountId, aud, at: Date.now() / 1000, error: error?.message });
}
provider.on("grant.success", told).on("grant.error", told);
provider.use(async (ctx, next) => {
  if (ctx.path === "/forget") forgotten.add(ctx.query.person);
  if (ctx.path === "/forget" || ctx.path === "/events") ctx.body = events;
  else await next();
});
provider.listen(Number(port), "localhost", () => console.log("ready"));
