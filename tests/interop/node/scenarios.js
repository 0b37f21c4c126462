// What vscode-jsonrpc sees of the daemon: `node scenarios.js DIRECTORY SCENARIO`.
// DIRECTORY holds the files of docs/vscode.md; what was seen is printed as one line of JSON.

const path = require('node:path');
const { Writable } = require('node:stream');
const rpc = require('vscode-jsonrpc/node');

const directory = process.argv[2];
const { connect, disconnect, search } = require(path.join(directory, 'text-tools.js'));
const extra = process.env.OPTIONS ? process.env.OPTIONS.split(' ') : [];
const command = ['duet-rpc', 'serve', 'examples/editor_daemon.py', ...extra];

const PATIENCE = 40000; // milliseconds: far more than anything here takes

// A rejection as plain JSON.
const told = ({ code, message, data }) => ({ code, message, data });
const problem = (promise) => promise.then(
  (result) => ({ unexpected: result }),
  (error) => told(error),
);

function once() {
  let resolve;
  const happened = new Promise((done) => { resolve = done; });
  return { happened, resolve };
}

const scenarios = {
  async requests() {
    const tools = connect({ command });
    const { connection } = tools;
    const saw = {
      named: await connection.sendRequest('text.count', { text: 'one two\nthree' }),
      // One array is wrapped: it is the first positional parameter.
      positional: await connection.sendRequest('text.sort', ['b', 'a', 'C']),
      beyondAscii: await connection.sendRequest('text.sort', {
        lines: ['ü', '😀', 'naïve'], reverse: true,
      }),
      noParams: await connection.sendRequest('version'),
      handshake: await connection.sendRequest('initialize', { processId: 1, capabilities: {} }),
    };
    return { ...saw, ended: await disconnect(tools) };
  },

  async errors() {
    const tools = connect({ command });
    const { connection } = tools;
    const saw = {
      own: await problem(connection.sendRequest('text.check', { name: 'notes' })),
      params: await problem(connection.sendRequest('text.count', { text: 5 })),
      // An explicit null becomes the first positional parameter.
      nullParams: await problem(connection.sendRequest('text.count', null)),
      method: await problem(connection.sendRequest('text.nonsense', { a: 1 })),
      after: await connection.sendRequest('text.count', { text: 'still here' }),
    };
    return { ...saw, ended: await disconnect(tools) };
  },

  async concurrent() {
    const tools = connect({ command });
    const order = [];
    const asked = Array.from({ length: 1000 }, (_, number) =>
      tools.connection.sendRequest('text.count', { text: 'x'.repeat(number) })
        .then((count) => { order.push(number); return count.characters; }));
    const results = await Promise.all(asked);
    return { results, order, ended: await disconnect(tools) };
  },

  async cancel() {
    const tools = connect({ command });
    const { connection } = tools;
    const running = new rpc.CancellationTokenSource();
    const started = once();
    const searching = problem(search(
      connection,
      { pattern: 'needle', directory: process.env.HAYSTACK, pause: 0.2 },
      () => started.resolve(),
      running.token,
    ));
    await started.happened;
    const queued = new rpc.CancellationTokenSource();
    const waiting = problem(connection.sendRequest('text.count', { text: 'a' }, queued.token));
    const behind = connection.sendRequest('text.count', { text: 'a b' });
    queued.cancel(); // in the same moment as it is sent
    const queuedSaw = await waiting;
    running.cancel();
    const runningSaw = await searching;
    const saw = { queued: queuedSaw, running: runningSaw, behind: await behind };
    // One that has been answered already is nobody's any more.
    const late = new rpc.CancellationTokenSource();
    saw.late = await connection.sendRequest('text.count', { text: 'a' }, late.token);
    late.cancel();
    saw.after = await connection.sendRequest('text.count', { text: 'a b c' });
    return { ...saw, ended: await disconnect(tools) };
  },

  async both_ways() {
    const notified = [];
    const unhandled = [];
    const first = once();
    const answers = { name: 'Ada', other: 'Grace' };
    const tools = connect({
      command,
      handle: (connection) => {
        connection.onNotification('text.problems', (params) => { notified.push(params); first.resolve(); });
        connection.onUnhandledNotification((message) => unhandled.push(message.method));
        connection.onRequest('editor.ask', async ({ field }) => {
          if (!(field in answers)) throw new rpc.ResponseError(4711, 'I do not know');
          // A question of ours while the daemon waits for an answer to its own.
          const meanwhile = await connection.sendRequest('text.count', { text: field });
          return `${answers[field]}${meanwhile.characters}`;
        });
      },
    });
    const { connection } = tools;
    await connection.sendNotification('text.open', { name: 'notes', text: 'good\nbad  ' });
    await connection.sendNotification('text.nonsense', {});
    await connection.sendNotification('text.open', [5]);
    await first.happened;
    const saw = {
      opened: await connection.sendRequest('text.opened'),
      filled: await connection.sendRequest('text.fill', { template: '{name}, {other}, {name}' }),
      refused: await problem(connection.sendRequest('text.fill', { template: '{age}' })),
    };
    return { ...saw, notified, unhandled, ended: await disconnect(tools) };
  },

  async unhandled() {
    const tools = connect({ command });
    const refused = await problem(tools.connection.sendRequest('text.fill', { template: '{name}' }));
    return { refused, ended: await disconnect(tools) };
  },

  async progress() {
    const tools = connect({ command });
    const steps = [];
    const params = { pattern: 'needle', directory: process.env.HAYSTACK };
    const matches = await search(tools.connection, params, (step) => steps.push(step));
    return { steps, matches, ended: await disconnect(tools) };
  },

  // Header and body are two writes of the library; here there is a pause between them as well.
  async two_writes() {
    const { daemon, ended, connection: unused } = connect({ command });
    unused.dispose();
    const writes = [];
    const slow = new Writable({
      write(chunk, encoding, done) {
        writes.push(chunk.subarray(0, 15).toString() === 'Content-Length:' ? 'header' : 'body');
        setTimeout(() => daemon.stdin.write(chunk, done), 30);
      },
    });
    const connection = rpc.createMessageConnection(
      new rpc.StreamMessageReader(daemon.stdout),
      new rpc.StreamMessageWriter(slow),
    );
    connection.listen();
    const counts = await Promise.all(['a', 'a b', 'a b c'].map(
      (text) => connection.sendRequest('text.count', { text })));
    await connection.sendRequest('shutdown');
    return { words: counts.map((count) => count.words), writes, ended: await ended };
  },

  async exit() {
    const { connection, ended } = connect({ command });
    const answered = connection.sendRequest('shutdown');
    await connection.sendNotification('exit');
    return { answer: await answered, ended: await ended };
  },

  async cannot_start() {
    let log = '';
    const { connection, ended } = connect({
      command: ['duet-rpc', 'serve', 'nothing.py'],
      log: (text) => { log += text; },
    });
    const refused = await problem(connection.sendRequest('text.count', { text: 'one' }));
    return { refused, ended: await ended, log };
  },

  async end_of_input() {
    const { connection, ended } = connect({ command });
    const count = await connection.sendRequest('text.count', { text: 'one' });
    connection.end();
    return { count, ended: await ended };
  },

  async killed_by_term() {
    const { connection, daemon, ended } = connect({ command });
    const count = await connection.sendRequest('text.count', { text: 'one' });
    daemon.kill('SIGTERM');
    return { count, ended: await ended };
  },

  async builtin() {
    const tools = connect({ command: ['duet-rpc', 'rpc'] });
    const { connection } = tools;
    const saw = {
      handshake: await connection.sendRequest('initialize', { processId: 1 }),
      methods: (await connection.sendRequest('listMethods')).map((method) => method.name),
      level: await connection.sendRequest('setLogLevel', { level: 'WARN' }),
      wrong: await problem(connection.sendRequest('setLogLevel', { level: 'loud' })),
      openrpc: (await connection.sendRequest('rpc.discover')).openrpc,
    };
    return { ...saw, ended: await disconnect(tools) };
  },

  async extension() {
    const vscode = require('vscode');
    const { activate, deactivate } = require(path.join(directory, 'extension.js'));
    const { seen, window } = vscode;
    const run = vscode.commands.executeCommand;
    const context = { subscriptions: [] };
    activate(context);
    await run('textTools.count');
    await run('textTools.check');
    window.answers.push('Ada', undefined);
    const filled = await run('textTools.fill', 'Dear {name}');
    const unfilled = await run('textTools.fill', 'Dear {name}');
    const matches = await run('textTools.search', 'needle', process.env.HAYSTACK);
    const cancelling = new rpc.CancellationTokenSource();
    window.cancellation = cancelling.token;
    const cancelled = run('textTools.search', 'needle', process.env.HAYSTACK);
    cancelling.cancel();
    await cancelled;
    await deactivate();
    return { ...seen, filled, unfilled, matches, commands: vscode.commands.getCommands() };
  },

  async trace() {
    const trace = require(path.join(directory, 'trace.js'));
    const tools = connect({ command });
    let log = '';
    await trace(tools.connection, (text) => { log += text; });
    await tools.connection.sendRequest('text.count', { text: 'one' });
    return { log, ended: await disconnect(tools) };
  },
};

const impatience = setTimeout(() => {
  console.error('waited in vain');
  process.exit(1);
}, PATIENCE);

scenarios[process.argv[3]]().then(
  (saw) => {
    clearTimeout(impatience);
    console.log(`\nSAW ${JSON.stringify(saw)}`);
  },
  (error) => {
    console.error(error);
    process.exit(1);
  },
);
