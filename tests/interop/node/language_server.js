// What vscode-languageserver-protocol sees of a language server: `node language_server.js PROSE SCENARIO`.
// PROSE is the file of docs/language-server.md; what was seen is printed as one line of JSON.

const lsp = require('vscode-languageserver-protocol/node');
const { TextDocument } = require('vscode-languageserver-textdocument');
const { start, stop } = require(process.argv[2]);

const PATIENCE = 40000; // milliseconds: far more than anything here takes
const command = ['python3', process.env.SERVER];
const uri = 'file:///notes.md';

// The editor's end of one document: it applies each edit itself and sends it as a range.
class Document {
  constructor(connection, text) {
    this.connection = connection;
    this.document = TextDocument.create(uri, 'markdown', 1, text);
    this.published = [];
    this.waiting = [];
    connection.onNotification(lsp.PublishDiagnosticsNotification.type, (params) => {
      this.published.push(params);
      this.waiting.splice(0).forEach((wake) => wake());
    });
  }

  open() {
    const { version } = this.document;
    return this.connection.sendNotification(lsp.DidOpenTextDocumentNotification.type, {
      textDocument: { uri, languageId: 'markdown', version, text: this.text },
    });
  }

  get text() { return this.document.getText(); }

  at(offset) { return { textDocument: { uri }, position: this.document.positionAt(offset) }; }

  edit(start, end, text) {
    const range = { start: this.document.positionAt(start), end: this.document.positionAt(end) };
    const changes = [{ range, text }];
    this.document = TextDocument.update(this.document, changes, this.document.version + 1);
    return this.connection.sendNotification(lsp.DidChangeTextDocumentNotification.type, {
      textDocument: { uri, version: this.document.version }, contentChanges: changes,
    });
  }

  async diagnostics() {
    const { version } = this.document;
    for (;;) {
      const found = this.published.find((params) => params.version === version);
      if (found) return found.diagnostics.map(({ message, range }) => [this.document.getText(range), message]);
      await new Promise((wake) => { this.waiting.push(wake); });
    }
  }

  // What the server thinks that the document holds: its formatter gives the whole text back.
  async compare() {
    await this.edit(this.text.length, this.text.length, ' ');
    const edits = await this.connection.sendRequest(lsp.DocumentFormattingRequest.type, {
      textDocument: { uri }, options: { tabSize: 2, insertSpaces: true },
    });
    await this.edit(this.text.length - 1, this.text.length, '');
    return edits[0].newText === this.text.replace(/[ \t]+(?=\r?$)/gm, '');
  }
}

async function session(text, capabilities = {}) {
  let document;
  const tools = await start(command, {
    capabilities,
    handle: (connection) => { document = new Document(connection, text); },
  });
  await document.open();
  return { tools, document, connection: tools.connection };
}

const problem = (promise) => promise.then((result) => ({ result }), ({ code }) => ({ code }));

const scenarios = {
  async prose() {
    const markdown = { textDocument: { hover: { contentFormat: ['markdown'] } } };
    const { tools, document, connection } = await session('# One\r\ntwo two 😀 three\r\n', markdown);
    const saw = { hello: tools.hello, opened: await document.diagnostics() };
    saw.hover = await connection.sendRequest(lsp.HoverRequest.type, document.at(document.text.indexOf('three')));
    saw.completion = (await connection.sendRequest(lsp.CompletionRequest.type, document.at(0))).map(({ label }) => label);
    saw.symbols = (await connection.sendRequest(lsp.DocumentSymbolRequest.type, { textDocument: { uri } }))
      .map(({ name }) => name);
    await document.edit(7, 11, '😀 ');
    saw.changed = await document.diagnostics();
    const place = document.text.indexOf('two');
    const renamed = await connection.sendRequest(lsp.RenameRequest.type, { ...document.at(place), newName: 'zwei' });
    saw.renamed = TextDocument.applyEdits(document.document, renamed.changes[uri]);
    saw.definition = await connection.sendRequest(lsp.DefinitionRequest.type, document.at(place));
    saw.same = await document.compare();
    saw.late = await problem(stop(tools).then(() => connection.sendRequest(lsp.HoverRequest.type, document.at(0))));
    saw.ended = await tools.ended;
    return saw;
  },

  // Many edits at random places: half characters, line ends of every kind.
  async edits() {
    const { tools, document } = await session('one\r\ntwo 😀\rthree\n');
    const pieces = ['a', '😀', '\n', '\r\n', '\r', 'ü', '', '\ud83d', '\ude00', 'word word'];
    let seed = Number(process.env.SEED);
    const random = (limit) => { seed = (seed * 1103515245 + 12345) % 2147483648; return seed % limit; };
    let same = 0;
    for (let round = 0; round < 40; round += 1) {
      for (let step = 0; step < 5; step += 1) {
        const [start, end] = [random(document.text.length + 1), random(document.text.length + 1)].sort((a, b) => a - b);
        await document.edit(start, Math.min(end, start + 4), pieces[random(pieces.length)]);
      }
      same += await document.compare();
    }
    return { same, ended: await stop(tools) };
  },

  async cancel() {
    const { tools, document, connection } = await session('one');
    const source = new lsp.CancellationTokenSource();
    const begun = new Promise((resolve) => { connection.onNotification(lsp.LogMessageNotification.type, resolve); });
    const waiting = problem(connection.sendRequest('prose/wait', {}, source.token));
    await begun;
    source.cancel();
    const saw = { waiting: await waiting };
    saw.hover = await connection.sendRequest(lsp.HoverRequest.type, document.at(0));
    return { ...saw, ended: await stop(tools) };
  },

  async exit_without_shutdown() {
    const { tools } = await session('one');
    await tools.connection.sendNotification(lsp.ExitNotification.type);
    return { ended: await tools.ended };
  },

  async killed() {
    const { tools, document } = await session('one');
    await document.diagnostics();
    process.kill(Number(require('node:fs').readFileSync(process.env.PID, 'utf8')), 'SIGKILL');
    const first = await tools.ended;
    const again = await session('one two');
    return { first, opened: await again.document.diagnostics(), ended: await stop(again.tools) };
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
    process.exit(0);
  },
  (error) => {
    console.error(error);
    process.exit(1);
  },
);
