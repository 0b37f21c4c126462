// As much of VS Code as vscode-languageclient needs for one document in one editor. What the client
// registers is kept: `providers` by the names of the functions, `problems` by URI. Whatever else it
// asks for is there and does nothing.

const { TextDocument: Content } = require('vscode-languageserver-textdocument');

const nothing = (name) => new Proxy(class {}, {
  get: (target, key) => (key in target || typeof key === 'symbol' ? target[key] : nothing(String(key))),
  apply: () => ({ dispose() {} }),
});

class Uri {
  constructor(text) { this.text = text; this.path = new URL(text).pathname; this.fsPath = this.path; this.scheme = 'file'; }

  static parse(text) { return new Uri(text); }

  static file(path) { return new Uri(`file://${path}`); }

  toString() { return this.text; }
}

class EventEmitter {
  constructor() {
    this.listeners = new Set();
    this.event = (listener, self) => {
      const bound = self ? listener.bind(self) : listener;
      this.listeners.add(bound);
      return { dispose: () => this.listeners.delete(bound) };
    };
  }

  fire(value) { [...this.listeners].forEach((listener) => listener(value)); }

  dispose() { this.listeners.clear(); }
}

class Disposable {
  constructor(run) { this.run = run; }

  static from(...all) { return new Disposable(() => all.forEach((each) => each.dispose())); }

  dispose() { this.run?.(); }
}

class Position {
  constructor(line, character) { this.line = line; this.character = character; }
}

class Range {
  constructor(start, end, endLine, endCharacter) {
    this.start = endLine === undefined ? start : new Position(start, end);
    this.end = endLine === undefined ? end : new Position(endLine, endCharacter);
  }

  get isEmpty() { return this.start.line === this.end.line && this.start.character === this.end.character; }
}

class Diagnostic {
  constructor(range, message, severity) { Object.assign(this, { range, message, severity }); }
}

class MarkdownString {
  constructor(value) { this.value = value; }

  appendMarkdown(text) { this.value = (this.value ?? '') + text; return this; }
}

class Hover {
  constructor(contents, range) { this.contents = [contents].flat(); this.range = range; }
}

class CompletionItem {
  constructor(label) { this.label = label; }
}

class TextEdit {
  constructor(range, newText) { this.range = range; this.newText = newText; }
}

class WorkspaceEdit {
  constructor() { this.edits = new Map(); }

  set(uri, edits) { this.edits.set(uri.toString(), edits); }
}

class CancellationError extends Error {}

class Cancellation extends EventEmitter {
  constructor() {
    super();
    this.token = { isCancellationRequested: false, onCancellationRequested: this.event };
  }

  cancel() { this.token.isCancellationRequested = true; this.fire(); }
}

// One document, edited as in an editor: each edit is applied and told.
class Document {
  constructor(path, text) {
    this.uri = Uri.file(path);
    this.fileName = path;
    this.languageId = 'markdown';
    this.isClosed = false;
    this.content = Content.create(this.uri.toString(), this.languageId, 1, text);
  }

  get version() { return this.content.version; }

  getText(range) { return this.content.getText(range); }

  positionAt(offset) {
    const { line, character } = this.content.positionAt(offset);
    return new Position(line, character);
  }

  edit(start, end, text) {
    const range = new Range(this.positionAt(start), this.positionAt(end));
    const change = { range, rangeOffset: start, rangeLength: end - start, text };
    this.content = Content.update(this.content, [{ range, text }], this.version + 1);
    events.onDidChangeTextDocument.fire({ document: this, contentChanges: [change], reason: undefined });
  }

  apply(edits) { return Content.applyEdits(this.content, edits); }
}

const events = {};
const providers = {};
const problems = new Map();
const published = new EventEmitter();
const documents = [];

// An object in which each `onDid...` is an event that never comes, unless it is fired by name.
const withEvents = (known) => new Proxy(known, {
  get(target, key) {
    if (key in target || typeof key === 'symbol') return target[key];
    if (/^on(Did|Will)/.test(key)) return (events[key] ??= new EventEmitter()).event;
    return nothing(key);
  },
});
['onDidOpenTextDocument', 'onDidChangeTextDocument', 'onDidCloseTextDocument'].forEach((name) => {
  events[name] = new EventEmitter();
});

const languages = new Proxy({
  match: (selector, document) => [selector].flat().some((each) => (each.language ?? each) === document.languageId) ? 10 : 0,
  createDiagnosticCollection: () => ({
    set(uri, found) { problems.set(uri.toString(), found ?? []); published.fire(); },
    delete(uri) { problems.delete(uri.toString()); },
    clear() { problems.clear(); },
    dispose() {},
  }),
}, {
  get(target, key) {
    if (key in target || typeof key === 'symbol') return target[key];
    return (selector, provider) => {
      providers[key] = provider;
      return { dispose: () => delete providers[key] };
    };
  },
});

const channel = () => ({
  logLevel: 3, onDidChangeLogLevel: new EventEmitter().event, text: '',
  append() {}, appendLine() {}, show() {}, clear() {}, dispose() {},
  trace() {}, debug() {}, info() {}, warn() {}, error() {},
});

const known = {
  __esModule: true,
  // For the test.
  Document, documents, events, problems, providers, published,
  // For the client.
  version: '1.110.0',
  Uri, EventEmitter, Disposable, Position, Range, Diagnostic, MarkdownString, Hover, CompletionItem, TextEdit,
  WorkspaceEdit, CancellationError,
  CancellationTokenSource: Cancellation,
  DiagnosticSeverity: { Error: 0, Warning: 1, Information: 2, Hint: 3 },
  LogLevel: { Off: 0, Trace: 1, Debug: 2, Info: 3, Warning: 4, Error: 5 },
  languages,
  env: { appName: 'a stub of VS Code', language: 'en' },
  extensions: { getExtension: () => undefined },
  window: withEvents({
    activeTextEditor: undefined, visibleTextEditors: [],
    tabGroups: { all: [], onDidChangeTabs: new EventEmitter().event, onDidChangeTabGroups: new EventEmitter().event },
    createOutputChannel: channel,
    showErrorMessage: async (message) => { console.error(message); },
  }),
  workspace: withEvents({
    textDocuments: documents, notebookDocuments: [], workspaceFolders: undefined,
    getConfiguration: () => ({ get: (name, value) => value }),
  }),
};

module.exports = new Proxy(known, {
  get: (target, key) => (key in target || typeof key === 'symbol' ? target[key] : nothing(key)),
});
