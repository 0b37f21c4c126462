'use strict';
// The MCP TypeScript SDK 2: its low-level server, which decides the era of the connection itself.

const { Server } = require('@modelcontextprotocol/server');
const { serveStdio } = require('@modelcontextprotocol/server/stdio');
const driver = require('./driver');

const TOOL = { name: 'add', inputSchema: { type: 'object' } };

const listTools = () => ({ tools: [TOOL] });
const callTool = ({ params }) => {
  const { a, b } = params.arguments;
  return { content: [{ type: 'text', text: String(a + b) }] };
};

driver.main({
  serve() {
    serveStdio(() => {
      const server = new Server({ name: 'bench', version: '1' }, { capabilities: { tools: {} } });
      server.setRequestHandler('tools/list', listTools);
      server.setRequestHandler('tools/call', callTool);
      return server;
    });
  },
});
