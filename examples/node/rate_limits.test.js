// Tests of rate_limits.js on the migrated database of DATABASE_URL: npm test
'use strict';

const assert = require('node:assert/strict');
const { randomUUID } = require('node:crypto');
const { after, before, beforeEach, test } = require('node:test');
const { Pool } = require('pg');
const { Denied, enforce, limit, transaction } = require('./rate_limits.js');
const { limits } = require('../limits.json');

const item = (name, key, options = {}) => ({ ...limits[name], name, key, ...options });
const pool = new Pool({ connectionString: process.env.DATABASE_URL, max: 8 });
let user, org;

before(async () => {
  await pool.query('CREATE TABLE IF NOT EXISTS messages (author text NOT NULL, org text NOT NULL, body text)');
});
after(() => pool.end());
beforeEach(() => {
  [user, org] = [`user ${randomUUID()}`, `org ${randomUUID()}`];
});

const cost = (author = user) => [item('per_user', author), item('per_org', org)];

async function post(client, author = user) {
  await client.query('INSERT INTO messages VALUES ($1, $2, $3)', [author, org, 'hello']);
  return enforce(client, cost(author)); // late, because the rows of the buckets stay locked until the commit
}

async function messages() {
  const { rows } = await pool.query('SELECT count(*)::int AS count FROM messages WHERE org = $1', [org]);
  return rows[0].count;
}

test('a message and its tokens commit or roll back together', async () => {
  for (const left of [2, 1, 0]) {
    const decision = await transaction(pool, post);
    assert.deepEqual([decision.ok, decision.retryAfter, decision.deniedBy], [true, null, []]);
    assert.equal(Math.floor(decision.limits[0].value), left);
  }
  const denied = await transaction(pool, post).catch((error) => error);
  assert.ok(denied instanceof Denied);
  const { ok, retryAfter, deniedBy, limits } = denied.decision;
  assert.deepEqual([ok, deniedBy, limits.map((one) => one.denied)], [false, ['per_user'], [true, false]]);
  assert.ok(retryAfter > 600 && retryAfter <= 1200, retryAfter);
  assert.equal(await messages(), 3);

  // The error of another statement gives the tokens back, also if it is ignored.
  const other = `user ${randomUUID()}`;
  const fail = async (client, ignore) => {
    assert.equal((await enforce(client, cost(other))).limits[0].value, 2);
    await client.query('SELECT 1 / 0').catch((error) => { if (!ignore) throw error; });
  };
  await assert.rejects(transaction(pool, (client) => fail(client, false)), { code: '22012' });
  await assert.rejects(transaction(pool, (client) => fail(client, true)), /rolled back/);
  for (const left of [2, 1]) assert.equal(Math.floor((await limit(pool, cost(other))).limits[0].value), left);
  assert.deepEqual((await limit(pool, cost())).deniedBy, ['per_org', 'per_user']);
});

test('many clients never exceed the limit', async () => {
  for (const isolation of ['READ COMMITTED', 'SERIALIZABLE']) {
    org = `org ${randomUUID()}`;
    const caller = () => transaction(pool, async (client) => {
      await client.query(`SET TRANSACTION ISOLATION LEVEL ${isolation}`);
      return post(client, `user ${randomUUID()}`);
    });
    const results = await Promise.allSettled(Array.from({ length: 24 }, caller));
    assert.ok(results.every(({ reason }) => !reason || reason instanceof Denied), results.find((one) => one.reason)?.reason);
    assert.deepEqual([results.filter(({ value }) => value?.ok).length, await messages()], [5, 5]);
  }
});

test('a conflict is retried', async () => {
  let attempts = 0;
  await limit(pool, cost());
  const decision = await transaction(pool, async (client) => {
    await client.query('SET TRANSACTION ISOLATION LEVEL SERIALIZABLE');
    await client.query('SELECT 1 FROM messages'); // takes the snapshot
    if (++attempts === 1) await limit(pool, cost()); // another session commits meanwhile
    return post(client);
  });
  assert.deepEqual([decision.ok, attempts, await messages()], [true, 2, 1]);
});

test('slots are held until they are released', async () => {
  const acquire = `
    SELECT ok, lease_id AS lease, extract(epoch FROM retry_after)::float8 AS "retryAfter", value
    FROM rate_limit.acquire_with('slots', $1, capacity => $2, lease => $3)`;
  const held = (await pool.query(acquire, [user, 1, '1 minute'])).rows[0];
  assert.deepEqual([held.ok, held.retryAfter, held.value, typeof held.lease], [true, null, 0, 'string']);
  const denied = (await pool.query(acquire, [user, 1, '1 minute'])).rows[0];
  assert.deepEqual([denied.ok, denied.lease], [false, null]);
  assert.ok(denied.retryAfter > 0 && denied.retryAfter <= 60, denied.retryAfter);
  const release = "SELECT rate_limit.release($1, $2, $3) AS released";
  for (const expected of [true, false]) {
    const { rows } = await pool.query(release, ['slots', user, held.lease]);
    assert.equal(rows[0].released, expected);
  }
  // Slots together with tokens, under one lease. In JSON, its number is exact.
  const { limits: [slots] } = await enforce(pool, [item('reports', user, { count: 2 }), item('per_user', user)]);
  assert.ok(Number.isSafeInteger(slots.lease_id));
  assert.equal((await pool.query(release, ['reports', user, slots.lease_id])).rows[0].released, true);
});

test('a denial has its seconds in every style in which the database writes intervals', async () => {
  const { rows: [{ name }] } = await pool.query('SELECT quote_ident(current_database()) AS name');
  try {
    for (const style of ['sql_standard', 'iso_8601', 'postgres_verbose', 'postgres']) {
      await pool.query(`ALTER DATABASE ${name} SET intervalstyle = ${style}`);
      const styled = new Pool({ connectionString: process.env.DATABASE_URL, max: 1 });
      [user, org] = [`user ${randomUUID()}`, `org ${randomUUID()}`];
      for (let nth = 0; nth < 3; nth++) await transaction(styled, post);
      const denied = await transaction(styled, post).catch((error) => error);
      assert.ok(denied instanceof Denied, denied);
      const { retryAfter } = denied.decision;
      assert.ok(retryAfter > 600 && retryAfter <= 1200, `${style}: ${retryAfter}`);
      await styled.end();
    }
  } finally {
    await pool.query(`ALTER DATABASE ${name} RESET intervalstyle`);
  }
});

test('a malformed call reports what is wrong', async () => {
  const good = item('per_user', user);
  for (const [calls, message] of [
    [{}, /^invalid_call: the argument is of type object, not an array$/],
    [null, /^invalid_call: the argument is of type null, not an array$/],
    [undefined, /^invalid_call: the argument is NULL, not an array$/],
    [[], /^invalid_call: the call names no limit$/],
    [[good, { ...good, key: 7 }], /^invalid_call: element 2: the field "key" is of type number, not string$/],
    [[{ ...good, rate: NaN }], /^invalid_call: element 1: the field "rate" is missing$/],
    [[{ ...good, period: 'soon' }], /^invalid_limit: element 1: the period "soon" is not an interval$/],
    [[{ ...good, count: 4 }], /^count_exceeds_capacity: /],
  ]) {
    const error = await limit(pool, calls).catch((thrown) => thrown);
    assert.equal(error.code, '22023');
    assert.match(error.message, message);
    assert.ok(error.hint);
  }
  assert.equal((await limit(pool, [good])).limits[0].value, 2);
});
