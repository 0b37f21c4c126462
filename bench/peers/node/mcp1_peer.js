'use strict';
// The MCP TypeScript SDK 1: its low-level server.

const { Server } = require('@modelcontextprotocol/sdk/server/index.js');
const { StdioServerTransport } = require('@modelcontextprotocol/sdk/server/stdio.js');
const types = require('@modelcontextprotocol/sdk/types.js');
const driver = require('./driver');

const TOOL = { name: 'add', inputSchema: { type: 'object' } };

const listTools = () => ({ tools: [TOOL] });
const callTool = ({ params }) => {
  const { a, b } = params.arguments;
  return { content: [{ type: 'text', text: String(a + b) }] };
};

driver.main({
  serve() {
    const server = new Server({ name: 'bench', version: '1' }, { capabilities: { tools: {} } });
    server.setRequestHandler(types.ListToolsRequestSchema, listTools);
    server.setRequestHandler(types.CallToolRequestSchema, callTool);
    return server.connect(new StdioServerTransport());
  },
});
