'use strict';
// jayson: its TCP server, here on a socket pair in place of stdin and stdout or on a unix socket.
// Its client opens a connection for every request, so only the server takes part.

const jayson = require('jayson');
const driver = require('./driver');

const server = new jayson.Server({
  add: ({ a, b }, done) => done(null, a + b),
  echo: ({ value }, done) => done(null, value),
});

driver.main({
  serve() {
    const { Socket } = require('net');
    const socket = new Socket({ fd: 0, readable: true, writable: true });
    server.tcp().emit('connection', socket);
  },
  listen(path) {
    server.tcp().listen({ path, backlog: 1024 });
  },
  dispatch() {
    return (data, done) =>
      server.call(data.toString(), (error, success) => {
        const reply = error || success;
        done(reply && Buffer.from(JSON.stringify(reply)));
      });
  },
});
