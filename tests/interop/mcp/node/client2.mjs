// The MCP TypeScript client 2: `node client2.mjs tour|leave legacy|auto|VERSION COMMAND...`.
import { Client } from "@modelcontextprotocol/client";
import { StdioClientTransport } from "@modelcontextprotocol/client/stdio";
import { main } from "./scenarios.mjs";

await main(async (mode, server, onerror) => {
  const versionNegotiation = { mode: ["legacy", "auto"].includes(mode) ? mode : { pin: mode } };
  const client = new Client({ name: "duet-rpc-tests", version: "1" }, { versionNegotiation });
  client.onerror = onerror;
  await client.connect(new StdioClientTransport(server));
  return {
    opening: () => ({
      version: client.getNegotiatedProtocolVersion(),
      server: {
        info: client.getServerVersion(),
        instructions: client.getInstructions(),
        capabilities: client.getServerCapabilities(),
      },
    }),
    call: (name, args, options) => client.callTool({ name, arguments: args }, options),
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
