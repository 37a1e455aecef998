// npm's memcached, which speaks text, through what an application does.
// Usage: node memcached_client.js PORT.
const assert = require('assert');
const { promisify } = require('util');
const Memcached = require('memcached');

const address = '127.0.0.1:' + process.argv[2];
const client = new Memcached(address, { poolSize: 4, retries: 0, timeout: 10000, maxValue: 1 << 20 });
const call = {};
for (const name of ['set', 'get', 'gets', 'getMulti', 'add', 'replace', 'append', 'prepend', 'cas',
  'incr', 'decr', 'del', 'touch', 'version', 'stats', 'settings', 'slabs', 'items',
  'flush']) {
  call[name] = promisify(client[name]).bind(client);
}

// What is refused is an error or false, depending on the command.
const refused = (promise) => promise.then((answer) => assert.strictEqual(answer, false), () => {});

async function main() {
  await call.flush();
  const [version] = await call.version();
  assert.deepStrictEqual(
    [version.version, version.major, version.minor, version.bugfix].map(String),
    ['1.6.45', '1', '6', '45']);
  assert.strictEqual(await call.set('key', 'value', 600), true);
  assert.strictEqual(await call.get('key'), 'value');
  assert.strictEqual(await call.get('none'), undefined);
  await refused(call.add('key', 'other', 600));
  await refused(call.replace('none', 'x', 600));
  assert.strictEqual(await call.append('key', '!'), true);
  assert.strictEqual(await call.prepend('key', '>'), true);
  const got = await call.gets('key');
  assert.strictEqual(got.key, '>value!');
  assert.strictEqual(await call.cas('key', 'swapped', got.cas, 600), true);
  await refused(call.cas('key', 'again', got.cas, 600));
  // Flags carry the type.
  const values = { number: 7, object: { a: [1, 'two'] }, buffer: Buffer.from([0, 13, 10, 255]), text: 'ümlaut' };
  for (const [key, value] of Object.entries(values)) {
    assert.strictEqual(await call.set(key, value, 600), true);
  }
  assert.deepStrictEqual({ ...await call.getMulti([...Object.keys(values), 'none']) }, values);
  assert.strictEqual(await call.set('n', 10, 600), true);
  assert.strictEqual(await call.incr('n', 5), 15);
  assert.strictEqual(await call.decr('n', 20), 0);
  await refused(call.incr('none', 1));
  assert.strictEqual(await call.touch('key', 60), true);
  const large = 'x'.repeat(1000000);
  assert.strictEqual(await call.set('large', large, 600), true);
  assert.strictEqual(await call.get('large'), large);
  const many = Array.from({ length: 500 }, (_, n) => n);
  await Promise.all(many.map((n) => call.set('many' + n, n, 600)));
  const found = await Promise.all(many.map((n) => call.get('many' + n)));
  assert.deepStrictEqual(found, many);
  assert.strictEqual(await call.set('short', 'lived', 1), true);
  const end = Date.now() + 20000;
  while (await call.get('short') !== undefined) assert(Date.now() < end);
  const [stats] = await call.stats();
  assert.strictEqual(stats.version, '1.6.45');
  assert(Number(stats.cmd_set) > 500);
  const [settings] = await call.settings();
  assert(settings.maxbytes >= 64 << 20, settings.maxbytes);
  const [slabs] = await call.slabs();
  assert(slabs['1'].chunk_size > 0);
  const [items] = await call.items();
  assert(items['1'].number > 0);
  assert.strictEqual(await call.del('key'), true);
  await refused(call.del('key'));
  assert.strictEqual(await call.get('key'), undefined);
  client.end();
  console.log('memcached (npm): passed');
}

main().catch((error) => { console.error(error); process.exit(1); });
