// A TypeScript SDK 1.x client of tasks (2025-11-25): `node tasks_ts.mjs URL PREFIX`. Prints one JSON object.
import { Client } from "@modelcontextprotocol/sdk/client/index.js";
import { StreamableHTTPClientTransport } from "@modelcontextprotocol/sdk/client/streamableHttp.js";
import { CallToolResultSchema, CreateMessageRequestSchema, ElicitRequestSchema } from "@modelcontextprotocol/sdk/types.js";

const [url, prefix] = process.argv.slice(2);
const client = new Client({ name: "ts-tasks", version: "1" }, { capabilities: { elicitation: { form: {} }, sampling: {} } });
const related = [];
const note = (request) => related.push(request.params._meta?.["io.modelcontextprotocol/related-task"]?.taskId);
client.setRequestHandler(ElicitRequestSchema, async (request) => {
  note(request);
  return { action: "accept", content: { confirm: true } };
});
client.setRequestHandler(CreateMessageRequestSchema, async (request) => {
  note(request);
  return { model: "m", role: "assistant", content: { type: "text", text: "three lines" } };
});
await client.connect(new StreamableHTTPClientTransport(new URL(url)));
await client.listTools();

const run = async (name, args) => {
  const told = { statuses: [] };
  const call = { name: `${prefix}${name}`, arguments: args };
  for await (const message of client.experimental.tasks.callToolStream(call, CallToolResultSchema, { task: { ttl: 60000 } })) {
    if (message.type === "taskCreated") told.task = message.task.taskId;
    if (message.type === "taskStatus") told.statuses.push(message.task.status);
    if (message.type === "result") told.text = message.result.content[0].text;
    if (message.type === "error") told.error = String(message.error);
  }
  return told;
};

const answer = { deleted: await run("confirm_delete", { filename: "f.txt" }), haiku: await run("write_haiku", { topic: "rain" }) };
answer.related = related;
answer.got = (await client.experimental.tasks.getTask(answer.haiku.task)).status;
await client.close();
console.log(JSON.stringify(answer));
