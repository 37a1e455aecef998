// memjs, which speaks binary, through what an application does. Usage: node memjs_client.js PORT.
const assert = require('assert');
const memjs = require('memjs');

const client = memjs.Client.create('127.0.0.1:' + process.argv[2], { retries: 0, timeout: 10 });

async function main() {
  await client.flush();
  assert.strictEqual(await client.set('key', 'value', { expires: 600 }), true);
  const got = await client.get('key');
  assert.strictEqual(got.value.toString(), 'value');
  assert.strictEqual(await client.add('key', 'other', {}), false);
  assert.strictEqual(await client.replace('none', 'x', {}), false);
  assert.strictEqual(await client.append('key', '!'), true);
  assert.strictEqual((await client.get('key')).value.toString(), 'value!');
  assert.strictEqual(await client.touch('key', 60), true);
  assert.strictEqual((await client.increment('n', 5, { initial: 10 })).value, 10);
  assert.strictEqual((await client.increment('n', 5, {})).value, 15);
  assert.strictEqual((await client.decrement('n', 20, {})).value, 0);
  assert.strictEqual(await client.delete('key'), true);
  assert.strictEqual((await client.get('key')).value, null);
  const server = Object.values(await new Promise((resolve, reject) =>
    client.stats((error, host, stats) => (error ? reject(error) : resolve({ stats })))))[0];
  assert(server.version.startsWith('1.6.'));
  client.close();
  console.log('memjs: passed');
}

main().catch((error) => { console.error(error); process.exit(1); });
