// A certified OpenID provider as authorization server: `node authorization_server.mjs PORT RESOURCE TOKEN_TTL_S`.
// Clients register themselves; whoever logs in is whom they say they are. Says `ready` when it listens.
import Provider from "oidc-provider";

const [port, resource, ttl] = process.argv.slice(2);
const issuer = `http://localhost:${port}`;
const provider = new Provider(issuer, {
  scopes: ["openid", "offline_access", "mcp"],
  pkce: { required: () => true },
  issueRefreshToken: () => true,
  ttl: { Interaction: 60, Session: 600, Grant: 600, RefreshToken: 600 },
  features: {
    registration: { enabled: true },
    devInteractions: { enabled: true },
    resourceIndicators: {
      enabled: true,
      useGrantedResource: () => true,
      getResourceServerInfo: (_, asked) => {
        if (asked !== resource) throw new Error(`no such resource: ${asked}`);
        return { scope: "mcp", audience: asked, accessTokenFormat: "jwt", accessTokenTTL: Number(ttl) };
      },
    },
  },
});
provider.listen(Number(port), "localhost", () => console.log("ready"));
