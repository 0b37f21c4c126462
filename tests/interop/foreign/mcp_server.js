// An MCP server out of the official TypeScript SDK: one tool, which takes its time as it likes.
const { Server } = require('@modelcontextprotocol/sdk/server/index.js')
const { StdioServerTransport } = require('@modelcontextprotocol/sdk/server/stdio.js')
const types = require('@modelcontextprotocol/sdk/types.js')

const server = new Server({ name: 'adder', version: '1' }, { capabilities: { tools: {} } })
server.setRequestHandler(types.ListToolsRequestSchema, async () => ({
  tools: [{ name: 'add', inputSchema: { type: 'object' } }],
}))
server.setRequestHandler(types.CallToolRequestSchema, async ({ params }) => {
  await new Promise((resolve) => setTimeout(resolve, Math.random() * 50))
  const total = params.arguments.a + params.arguments.b
  return { content: [{ type: 'text', text: String(total) }] }
})
server.connect(new StdioServerTransport())
