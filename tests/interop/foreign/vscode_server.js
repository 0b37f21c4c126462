// A server out of vscode-jsonrpc: adds, in its own time; fails; calls its caller back.
const rpc = require('vscode-jsonrpc/node')

const connection = rpc.createMessageConnection(
  new rpc.StreamMessageReader(process.stdin),
  new rpc.StreamMessageWriter(process.stdout),
)
const later = (seconds) => new Promise((resolve) => setTimeout(resolve, seconds * 1000))
connection.onRequest('add', async ({ a, b }) => {
  await later(Math.random() / 20)
  return a + b
})
connection.onRequest('fail', () => {
  throw new rpc.ResponseError(4714, 'it failed', { why: 'asked to' })
})
connection.onRequest('wait', async (params, token) => {
  await new Promise((resolve) => token.onCancellationRequested(resolve))
  connection.sendNotification('cancelled')
  return 'cancelled'
})
connection.onRequest('back', ({ text }) => connection.sendRequest('upper', { text }))
connection.onClose(() => process.exit(0))
connection.listen()
