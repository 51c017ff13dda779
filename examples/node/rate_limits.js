// Rate limits in the application's own PostgreSQL, with node-postgres (pg).
'use strict';

// node-postgres returns an interval as an object, and a numeric or a bigint as a string. A float8 is a number.
const RATE_LIMIT_ALL = `
  SELECT ok, extract(epoch FROM retry_after)::float8 AS "retryAfter", denied_by AS "deniedBy", limits
  FROM rate_limit.limit_all_with($1)`;

// The decision of a call that a limit denied.
class Denied extends Error {
  constructor(decision) {
    super(`denied by ${decision.deniedBy.join(', ')}, for ${decision.retryAfter} s`);
    this.decision = decision;
  }
}

// Takes tokens, all or none: on a client in its transaction, or on a pool in a transaction of its own. Returns ok; retryAfter, after
// a denial the seconds until the same call would be allowed; deniedBy, the names of the limits that denied the call; and limits,
// one for each element of the call: name, key, denied, value (the balance), and lease_id of slots. A malformed call throws an
// error with the code 22023. After an error, roll the transaction back.
async function limit(client, calls) {
  const { rows } = await client.query(RATE_LIMIT_ALL, [JSON.stringify(calls)]);
  return rows[0];
}

// Like limit, but throws Denied if the call is denied.
async function enforce(client, calls) {
  const decision = await limit(client, calls);
  if (!decision.ok) throw new Denied(decision);
  return decision;
}

// Runs work(client) in a transaction, and again after a conflict, at most ten times.
async function transaction(pool, work) {
  const client = await pool.connect();
  let broken;
  try {
    for (let attempt = 1; ; attempt++) {
      try {
        await client.query('BEGIN');
        const result = await work(client);
        const { command } = await client.query('COMMIT');
        // PostgreSQL answers the COMMIT of a failed transaction with ROLLBACK, without an error.
        if (command !== 'COMMIT') throw new Error('rolled back: work(client) ignored an error of a statement');
        return result;
      } catch (error) {
        await client.query('ROLLBACK').catch((lost) => { broken = lost; });
        const isConflict = error.code === '40001' || error.code === '40P01'; // serialization_failure, deadlock_detected
        if (!isConflict || attempt === 10 || broken) throw error;
      }
      // A random pause of up to 10 ms, then 20 ms, 40 ms, ..: so that the same transactions do not meet again.
      await new Promise((resolve) => setTimeout(resolve, Math.random() * 5 * 2 ** attempt));
    }
  } finally {
    client.release(broken);
  }
}

module.exports = { Denied, limit, enforce, transaction };
