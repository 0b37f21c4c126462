'use strict';
// The Node side of the driver protocol: the same roles, plans, loops and checks as driver.py.

const fs = require('fs');

exports.main = async function main(roles) {
  const [role, ...rest] = process.argv.slice(2);
  if (!(role in roles)) throw new Error(`this program has no role ${role}`);
  if (role === 'call') return report(await call(roles.call, plan(rest[0]), rest.slice(1)));
  if (role === 'dispatch') return report(await dispatch(roles.dispatch, rest[0], Number(rest[1])));
  return roles[role](...rest);
};

function plan(text) {
  const found = JSON.parse(text);
  if (found.payload) found.value = JSON.parse(fs.readFileSync(found.payload, 'utf8'));
  return found;
}

function report(measures) {
  fs.writeSync(1, JSON.stringify(measures) + '\n');
}

function check(got, expected) {
  if (got === expected || JSON.stringify(got) === JSON.stringify(expected)) return;
  throw new Error(`wrong answer: ${JSON.stringify(got)}`.slice(0, 300));
}

async function call(connect, plan, program) {
  const client = await connect(program);
  await calls(client.call, plan, plan.warmup);
  const wall = performance.now();
  const cpu = process.cpuUsage();
  const latencies = await calls(client.call, plan, plan.count);
  const used = process.cpuUsage(cpu);
  const found = {
    wall: (performance.now() - wall) / 1e3,
    cpu: (used.user + used.system) / 1e6,
  };
  if (latencies.length) {
    latencies.sort((a, b) => a - b);
    found.p50 = latencies[Math.floor(latencies.length / 2)] / 1e3;
    found.p99 = latencies[Math.floor((latencies.length * 99) / 100)] / 1e3;
  }
  await client.close();
  return found;
}

async function calls(call, plan, count) {
  const latencies = [];
  switch (plan.work) {
    case 'one':
      for (let number = 0; number < count; number++) {
        const start = performance.now();
        const got = await call('add', { a: number, b: 1 });
        latencies.push(performance.now() - start);
        check(got, number + 1);
      }
      break;
    case 'window': {
      let next = 0;
      const caller = async () => {
        while (next < count) {
          const number = next++;
          check(await call('add', { a: number, b: 1 }), number + 1);
        }
      };
      await Promise.all(Array.from({ length: plan.width }, caller));
      break;
    }
    case 'rounds':
      for (let start = 0; start < count; start += plan.width) {
        const numbers = Array.from({ length: Math.min(plan.width, count - start) }, (_, i) => start + i);
        const got = await Promise.all(numbers.map((number) => call('add', { a: number, b: 1 })));
        got.forEach((value, i) => check(value, numbers[i] + 1));
      }
      break;
    case 'echo':
      for (let i = 0; i < count; i++) {
        const start = performance.now();
        const got = await call('echo', { value: plan.value });
        latencies.push(performance.now() - start);
        check(got, plan.value);
      }
      break;
  }
  return latencies;
}

const REQUEST = { jsonrpc: '2.0', method: 'add', params: { a: 1, b: 2 }, id: 7 };
const NOTIFICATION = { jsonrpc: '2.0', method: 'add', params: { a: 1, b: 2 } };
const BATCH = 50;

// `answer(bytes, done)` calls `done(bytes or undefined)`, before it returns or later.
async function dispatch(make, kind, count) {
  const [body, items] = {
    request: [REQUEST, 1],
    notification: [NOTIFICATION, 1],
    batch: [Array.from({ length: BATCH }, (_, id) => ({ ...REQUEST, id })), BATCH],
  }[kind];
  const data = Buffer.from(JSON.stringify(body));
  const answer = make();
  const results = await new Promise((done) => answer(data, done));
  const expected = kind === 'notification' ? [] : [].concat(body).map(() => 3);
  check([].concat(results ? JSON.parse(results) : []).map((reply) => reply.result), expected);
  const loops = [];
  for (let loop = 0; loop < 5; loop++) {
    const rounds = Math.max(1, Math.floor(count / items));
    const start = performance.now();
    for (let left = rounds; left > 0; left -= 1000) await burst(answer, data, Math.min(left, 1000));
    loops.push((performance.now() - start) / 1e3 / rounds / items);
  }
  return { seconds: Math.min(...loops) };
}

function burst(answer, data, count) {
  return new Promise((finished) => {
    let waiting = count;
    const done = () => {
      if (--waiting === 0) finished();
    };
    for (let i = 0; i < count; i++) answer(data, done);
  });
}
