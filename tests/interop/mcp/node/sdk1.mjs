// The MCP TypeScript SDK 1: `node sdk1.mjs tour|leave handshake COMMAND...`.
import { Client } from "@modelcontextprotocol/sdk/client/index.js";
import { StdioClientTransport } from "@modelcontextprotocol/sdk/client/stdio.js";
import { main } from "./scenarios.mjs";

await main(async (mode, server, onerror) => {
  const client = new Client({ name: "duet-rpc-tests", version: "1" });
  client.onerror = onerror;
  let version;
  const transport = new StdioClientTransport(server);
  transport.setProtocolVersion = (agreed) => (version = agreed);
  await client.connect(transport);
  return {
    opening: () => ({
      version,
      server: {
        info: client.getServerVersion(),
        instructions: client.getInstructions(),
        capabilities: client.getServerCapabilities(),
      },
    }),
    call: (name, args, options) => client.callTool({ name, arguments: args }, undefined, options),
    tools: () => client.listTools(),
    resources: () => client.listResources(),
    templates: () => client.listResourceTemplates(),
    read: (uri) => client.readResource({ uri }),
    prompts: () => client.listPrompts(),
    prompt: (name, args) => client.getPrompt({ name, arguments: args }),
    setLevel: (level) => client.setLoggingLevel(level),
    ping: () => client.ping(),
    close: () => client.close(),
  };
});
