// vscode-languageclient drives a language server in the extension of docs/language-server.md:
// `node language_client.js EXTENSION`. What was seen is printed as one line of JSON.

const vscode = require('vscode');
const { activate, deactivate } = require(process.argv[2]);

const PATIENCE = 40000; // milliseconds: far more than anything here takes

const document = new vscode.Document('/notes.md', '# One\r\ntwo two 😀 three\r\n');
const uri = document.uri.toString();

async function problems(count) {
  while (vscode.problems.get(uri)?.length !== count) {
    await new Promise((wake) => { const heard = vscode.published.event(() => { heard.dispose(); wake(); }); });
  }
  return vscode.problems.get(uri).map(({ message, range }) => [document.getText(range), message]);
}

async function main() {
  const { token } = new vscode.CancellationTokenSource();
  const at = (text) => document.positionAt(document.getText().indexOf(text));
  vscode.documents.push(document);
  await activate({ subscriptions: [], asAbsolutePath: () => process.env.SERVER });
  const { providers } = vscode;
  const saw = { opened: await problems(1) };
  const hover = await providers.registerHoverProvider.provideHover(document, at('three'), token);
  saw.hover = hover.contents[0].value;
  const offered = await providers.registerCompletionItemProvider
    .provideCompletionItems(document, at('three'), token, { triggerKind: 0 });
  saw.completion = (offered.items ?? offered).map(({ label }) => label);
  document.edit(7, 11, '😀 ');
  saw.changed = await problems(0);
  document.edit(7, 7, '😀😀 and and ');
  saw.again = await problems(1);
  const renaming = await providers.registerRenameProvider.provideRenameEdits(document, at('two'), 'zwei', token);
  saw.renamed = document.apply(renaming.edits.get(uri));
  await deactivate();
  return saw;
}

const impatience = setTimeout(() => {
  console.error('waited in vain');
  process.exit(1);
}, PATIENCE);

main().then(
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
