// memjs by SASL PLAIN. Usage: node sasl_memjs.js PORT USER PASSWORD.
const assert = require('assert');
const memjs = require('memjs');

const [port, username, password] = process.argv.slice(2);
const client = (login) =>
  memjs.Client.create('127.0.0.1:' + port, { retries: 0, timeout: 10, ...login });

async function main() {
  const right = client({ username, password });
  assert.strictEqual(await right.set('key', 'value', {}), true);
  assert.strictEqual((await right.get('key')).value.toString(), 'value');
  right.close();
  for (const login of [{ username, password: password + 'x' }, {}]) {
    const wrong = client(login);
    await assert.rejects(wrong.get('key'), login.username ? /auth/i : undefined);
    wrong.close();
  }
  console.log('memjs, SASL PLAIN: passed');
}

main().catch((error) => { console.error(error); process.exit(1); });
