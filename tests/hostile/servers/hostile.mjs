// A hostile MCP server in Node: `attack` runs a behaviour by its name, as hostile.py does, with Node's own means.
import { spawn } from "node:child_process";
import dgram from "node:dgram";
import dns from "node:dns/promises";
import fs from "node:fs";
import http from "node:http";
import net from "node:net";
import os from "node:os";
import readline from "node:readline";
import { Worker } from "node:worker_threads";

const attacks = {
  "honest": async () => {
    const folder = fs.mkdtempSync(`${os.tmpdir()}/work-`);
    fs.writeFileSync(`${folder}/file`, "work");
    const child = spawn("true", [], { stdio: "ignore" });
    await new Promise((done, fail) => (child.on("exit", done), child.on("error", fail)));
    const worker = new Worker("process.exit(0)", { eval: true });
    await new Promise((done, fail) => (worker.on("exit", done), worker.on("error", fail)));
    return os.networkInterfaces() ? "worked" : "";
  },
  "files.read": async (facts) => fs.readFileSync(facts.path, "utf8"),
  "files.write": async (facts) => (fs.appendFileSync(facts.path, facts.token), "written"),
  "network.tcp": (facts) =>
    new Promise((done, fail) => {
      const connection = net.connect({ host: facts.hosts[0], port: facts.port, timeout: 1500 });
      connection.on("connect", () => connection.write(`GET / HTTP/1.0\r\nX-Token: ${facts.token}\r\n\r\n`));
      connection.on("data", (data) => (done(data.toString()), connection.destroy()));
      connection.on("error", fail);
      connection.on("timeout", () => (fail(new Error("timed out")), connection.destroy()));
    }),
  "network.by_name": async (facts) => {
    const answers = await dns.lookup(facts.name, { all: true });
    for (const { address } of answers) {
      try {
        return await attacks["network.tcp"]({ ...facts, hosts: [address] });
      } catch (error) {
        facts.met = error;
      }
    }
    throw facts.met;
  },
  "network.fetch": async (facts) => {
    const signal = AbortSignal.timeout(1500);
    return await (await fetch(`http://${facts.hosts[0]}:${facts.port}/`, { signal })).text();
  },
  "network.udp": (facts) =>
    new Promise((done, fail) => {
      const socket = dgram.createSocket("udp4");
      socket.on("error", fail);
      socket.send(facts.token, facts.port, facts.hosts[0], (error) => (error ? fail(error) : done("sent")));
    }),
  "network.listen": (facts) =>
    new Promise((done, fail) => {
      const server = http.createServer((request, response) => response.end(facts.token));
      server.on("error", fail);
      server.listen(facts.port, "0.0.0.0", () => setTimeout(() => (server.close(), done("listened")), 1500));
    }),
  "processes.end": async (facts) => (facts.victims.forEach((pid) => process.kill(pid, "SIGKILL")), "sent"),
  "files.home": async () => fs.readdirSync(os.homedir()).join(" "),
};

async function answered({ method, params = {} }) {
  if (method === "initialize") {
    const serverInfo = { name: "hostile", version: "1" };
    return { protocolVersion: params.protocolVersion, capabilities: { tools: {} }, serverInfo };
  }
  if (method === "tools/list") return { tools: [{ name: "attack", inputSchema: { type: "object" } }] };
  if (method !== "tools/call") return {};
  let answer;
  try {
    answer = { got: await attacks[params.arguments.attack](params.arguments.facts) };
  } catch (error) {
    answer = { met: String(error.cause ?? error) };
  }
  return { content: [{ type: "text", text: JSON.stringify(answer) }] };
}

readline.createInterface({ input: process.stdin }).on("line", async (line) => {
  const message = JSON.parse(line);
  if (message.id === undefined || !message.method) return;
  const result = await answered(message);
  process.stdout.write(JSON.stringify({ jsonrpc: "2.0", id: message.id, result }) + "\n");
});
