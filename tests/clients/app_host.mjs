// A host of MCP Apps for a browser page: the published host code, a client of the SDK, and an iframe without origin.
import { Client, StreamableHTTPClientTransport } from "@modelcontextprotocol/client";
import { AppBridge, PostMessageTransport, getToolUiResourceUri } from "@modelcontextprotocol/ext-apps/app-bridge";

const UI = { "io.modelcontextprotocol/ui": { mimeTypes: ["text/html;profile=mcp-app"] } };
const hosts = (window.hosts = {});

// Connects to a server. Returns the names of its tools.
window.connectTo = async (url, era, key) => {
  const negotiation = era === "modern" ? { versionNegotiation: { mode: { pin: "2026-07-28" } } } : {};
  const client = new Client({ name: "app-host", version: "1" }, { ...negotiation, capabilities: { extensions: UI } });
  await client.connect(new StreamableHTTPClientTransport(new URL(url), { requestInit: { headers: { Authorization: `Bearer ${key}` } } }));
  const { tools } = await client.listTools();
  hosts[era] = { client, tools, called: [] };
  return tools.map((tool) => tool.name);
};

// Opens the app of a tool in an iframe of that id, and shows a result of the tool in it. Returns what the app is.
window.openApp = async (era, toolName, id) => {
  const { client, tools, called } = hosts[era];
  const tool = tools.find(({ name }) => name === toolName);
  const uri = getToolUiResourceUri(tool);
  const { contents } = await client.readResource({ uri });
  const frame = document.createElement("iframe");
  frame.id = id;
  frame.sandbox = "allow-scripts";
  document.body.append(frame);
  const bridge = new AppBridge(client, { name: "app-host", version: "1" }, { openLinks: {}, serverTools: {}, logging: {} });
  const forward = client.request.bind(client);
  client.request = (request, ...more) => {
    if (request.method === "tools/call") called.push(request.params.name);
    return forward(request, ...more);
  };
  const initialized = new Promise((resolve) => (bridge.oninitialized = resolve));
  await bridge.connect(new PostMessageTransport(frame.contentWindow, frame.contentWindow));
  frame.srcdoc = contents[0].text;
  await initialized;
  const result = await client.callTool({ name: toolName, arguments: {} });
  await bridge.sendToolInput({ arguments: {} });
  await bridge.sendToolResult(result);
  return { tool, contents, calledByHost: result };
};

window.callsOf = (era) => hosts[era].called;
window.ready = true;
