'use strict';
// vscode-jsonrpc: message connections over streams, params by name.

const rpc = require('vscode-jsonrpc/node');
const driver = require('./driver');

function connect(input, output) {
  return rpc.createMessageConnection(
    new rpc.StreamMessageReader(input),
    new rpc.StreamMessageWriter(output),
  );
}

function offer(connection) {
  connection.onRequest('add', ({ a, b }) => a + b);
  connection.onRequest('echo', ({ value }) => value);
  connection.listen();
}

driver.main({
  serve() {
    offer(connect(process.stdin, process.stdout));
  },
  listen(path) {
    require('net')
      .createServer((socket) => offer(connect(socket, socket)))
      .listen({ path, backlog: 1024 });
  },
  call([command, ...args]) {
    const { spawn } = require('child_process');
    const server = spawn(command, [...args, 'serve'], { stdio: ['pipe', 'pipe', 'inherit'] });
    const connection = connect(server.stdout, server.stdin);
    connection.listen();
    return {
      call: (method, params) => connection.sendRequest(method, params),
      close: () =>
        new Promise((closed) => {
          server.on('exit', closed);
          connection.dispose();
          server.stdin.end();
        }),
    };
  },
});
