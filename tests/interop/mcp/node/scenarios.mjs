// What each client on Node does, one function for each case; the same as scenarios.py.
import { setTimeout as sleep } from "node:timers/promises";

const PATIENCE = 30_000;

async function stateOf(client, name) {
  return (await client.call("lab_state", { name })).structuredContent.result;
}

async function until(client, name, wanted) {
  const end = Date.now() + PATIENCE;
  for (;;) {
    const found = await stateOf(client, name);
    if (found === wanted || Date.now() > end) return found;
    await sleep(20);
  }
}

const call = (client) => client.call("lab_add", { a: 2, b: 3 });

const CASES = {
  opening: (client) => client.opening(),
  tools: (client) => client.tools(),
  call,
  defaults: (client) => client.call("lab_add", { a: 2 }),
  structured: (client) => client.call("lab_count", { text: "größer als 1 \u{1f600}" }),
  bad_arguments: (client) => client.call("lab_add", { a: "two" }),
  declared_error: (client) => client.call("lab_deposit", { account: "nobody", cents: 5 }),
  unforeseen_error: (client) => client.call("lab_fail", {}),
  unknown_tool: (client) => client.call("lab_nothing", {}),
  picture: (client) => client.call("lab_picture", {}),
  mixed: (client) => client.call("lab_mixed", {}),
  async many(client) {
    const calls = Array.from({ length: 50 }, (_, n) =>
      client.call("lab_echo", { value: `v${n}`, seconds: 0.05 }),
    );
    return (await Promise.all(calls)).map((found) => found.content[0].text);
  },
  async progress(client) {
    const reports = [];
    const { promise: onTop, resolve } = Promise.withResolvers();
    const onprogress = ({ progress, total, message }) => {
      reports.push([progress, total, message]);
      if (progress === total) resolve();
    };
    const climbing = client.call("lab_climb", { steps: 4 }, { onprogress });
    await onTop;
    await client.call("lab_come_down", { steps: 4 });
    return { reports, result: (await climbing).structuredContent };
  },
  async cancel(client) {
    const stop = new AbortController();
    const hanging = client.call("lab_hang", { name: "to cancel" }, { signal: stop.signal });
    hanging.catch(() => {});
    const began = await until(client, "to cancel", "running");
    stop.abort("no more");
    await hanging.catch(() => {});
    const ended = await until(client, "to cancel", "ended");
    return { began, ended, after: await call(client) };
  },
  async repeat(client) {
    const order = { account: "hasty", cents: 5, seconds: 1.0, idempotency_key: "once" };
    let first = "answered";
    try {
      await client.call("lab_slow_deposit", order, { timeout: 300 });
    } catch (error) {
      first = error.constructor.name;
    }
    const second = await client.call("lab_slow_deposit", order);
    const third = await client.call("lab_slow_deposit", order);
    const effects = await client.call("lab_count_effects", { account: "hasty" });
    const other = await client.call("lab_slow_deposit", { ...order, cents: 6 });
    return {
      first,
      second: second.structuredContent,
      third: third.structuredContent,
      effects: effects.structuredContent.result,
      other,
    };
  },
  resources: (client) => client.resources(),
  templates: (client) => client.templates(),
  async read(client) {
    const found = [];
    for (const uri of ["lab://readme", "lab://dot", "lab://accounts/ada", "lab://squares/12"]) {
      found.push(await client.read(uri));
    }
    return found;
  },
  read_missing: (client) => client.read("lab://nothing"),
  prompts: (client) => client.prompts(),
  async prompt(client) {
    return [
      await client.prompt("review", { code: "x = 1", strict: "true" }),
      await client.prompt("talk", { topic: "tea" }),
    ];
  },
  prompt_without_argument: (client) => client.prompt("review", {}),
  set_level: (client) => client.setLevel("warning"),
  ping: (client) => client.ping(),
};

async function tour(client) {
  const saw = {};
  for (const [name, run] of Object.entries(CASES)) {
    try {
      saw[name] = await run(client);
    } catch (error) {
      const { code, message, data } = error;
      saw[name] = { raised: error.constructor.name, code, message, data };
    }
  }
  await client.close();
  return saw;
}

async function leave(client) {
  const names = ["lab_hang", "lab_hang_in_thread"];
  for (const name of names) client.call(name, { name }).catch(() => {});
  const saw = [];
  for (const name of names) saw.push(await until(client, name, "running"));
  await client.close();
  return saw;
}

export async function main(open) {
  const [what, mode, command, ...args] = process.argv.slice(2);
  const errors = [];
  const client = await open(mode, { command, args }, (error) => errors.push(String(error)));
  const saw = await { tour, leave }[what](client);
  if (!Array.isArray(saw)) saw.errors = errors;
  console.log("SAW", JSON.stringify(saw));
}
