// The package `ext-tasks` on the TypeScript client 2 drives tasks: `node tasks.mjs legacy|VERSION COMMAND...`.
import { Client } from "@modelcontextprotocol/client";
import { StdioClientTransport } from "@modelcontextprotocol/client/stdio";
import { createTaskSessionFromClient, resultFromTaskOutcome, toolDeclarationFromMcpTool } from "@modelcontextprotocol/ext-tasks/client";

const [mode, command, ...args] = process.argv.slice(2);
const clientInfo = { name: "duet-rpc-tests", version: "1" };
const clientCapabilities = { extensions: { "io.modelcontextprotocol/tasks": {} } };
const isLegacy = mode === "legacy";
const client = new Client(clientInfo, {
  capabilities: isLegacy ? {} : clientCapabilities,
  versionNegotiation: { mode: isLegacy ? mode : { pin: mode } },
});
const transport = new StdioClientTransport({ command, args });
await client.connect(transport);

// The client's own codecs do not know the extension: its messages go past them.
const waiting = new Map();
const onmessage = transport.onmessage;
transport.onmessage = (message, ...rest) => {
  const answer = waiting.get(message.id);
  return answer === undefined ? onmessage.call(transport, message, ...rest) : answer(message);
};
let next = 1;
function rawDispatch(request) {
  const id = request.id ?? `raw-${next++}`;
  const answered = new Promise((resolve) => waiting.set(id, resolve));
  transport.send({ jsonrpc: "2.0", ...request, id });
  return answered;
}

const modern = { rawDispatch, v2RequestFraming: { protocolVersion: mode, clientInfo, clientCapabilities } };
const { tools } = await client.listTools();
const session = createTaskSessionFromClient(client, { endpointId: "lab", ...(isLegacy ? {} : modern) });
const wanted = { account: "ada", cents: 5, seconds: 0.2, idempotency_key: "task-1" };
const saw = [];
for (const [name, given] of [["lab_slow_deposit", wanted], ["lab_deposit", { account: "nobody", cents: 1 }]]) {
  const declaration = toolDeclarationFromMcpTool(tools.find((tool) => tool.name === name));
  const execution = await session.callTool(name, given, { declaration, task: { preference: "require" } });
  try {
    const { outcome } = await execution.settle();
    saw.push(resultFromTaskOutcome(outcome));
  } catch (error) {
    saw.push({ raised: error.message });
  }
}
await session.close();
await client.close();
console.log(`SAW ${JSON.stringify(saw)}`);
