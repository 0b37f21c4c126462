// As much of VS Code as the extension in docs/vscode.md uses, with what it did kept in `seen`.

const seen = { messages: [], errors: [], output: '', problems: {}, progress: [] };
const commands = new Map();

class Range {
  constructor(...corners) { this.corners = corners; }
}

class Diagnostic {
  constructor(range, message) { this.range = range; this.message = message; }
}

module.exports = {
  seen,
  Diagnostic,
  Range,
  ProgressLocation: { Notification: 15 },
  Uri: { file: (path) => path },
  commands: {
    registerCommand(name, run) {
      commands.set(name, run);
      return { dispose: () => commands.delete(name) };
    },
    executeCommand: (name, ...given) => commands.get(name)(...given),
    getCommands: () => [...commands.keys()],
  },
  languages: {
    createDiagnosticCollection: () => ({ set: (uri, found) => { seen.problems[uri] = found; } }),
  },
  window: {
    activeTextEditor: {
      document: { fileName: 'notes', getText: () => 'one two \nthree' },
    },
    answers: [],
    cancellation: undefined,
    createOutputChannel: () => ({ append: (text) => { seen.output += text; } }),
    showInformationMessage: (message) => { seen.messages.push(message); },
    showErrorMessage: (message) => { seen.errors.push(message); },
    showInputBox: async () => module.exports.window.answers.shift(),
    withProgress: (options, task) => task(
      { report: (step) => { seen.progress.push(step.message); } },
      module.exports.window.cancellation,
    ),
  },
};
