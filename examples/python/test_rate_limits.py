"""Tests of rate_limits.py on the migrated database of DATABASE_URL: python3 -m unittest"""

import json
import os
import pathlib
import unittest
import uuid
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import psycopg
from psycopg import errors, sql
from psycopg.types.json import Jsonb

from rate_limits import Denied, enforce, limit, with_retries

LIMITS = json.loads((pathlib.Path(__file__).parent.parent / "limits.json").read_text())["limits"]


def item(name, key, **options):
    return {**LIMITS[name], "name": name, "key": key, **options}


def connect(**options):
    return psycopg.connect(os.environ["DATABASE_URL"], **options)


class RateLimits(unittest.TestCase):
    interval_style = "postgres"

    @classmethod
    def setUpClass(cls):
        with connect() as conn:
            conn.execute(sql.SQL("ALTER DATABASE {} SET intervalstyle = {}").format(
                sql.Identifier(conn.info.dbname), cls.interval_style))
            conn.execute("CREATE TABLE IF NOT EXISTS messages (author text NOT NULL, org text NOT NULL, body text)")

    def setUp(self):
        self.conn = self.enterContext(connect(autocommit=True))
        self.user, self.org = f"user {uuid.uuid4()}", f"org {uuid.uuid4()}"

    def cost(self, user=None):
        return [item("per_user", user or self.user), item("per_org", self.org)]

    def post(self, conn, body="hello"):
        conn.execute("INSERT INTO messages VALUES (%s, %s, %s)", [self.user, self.org, body])
        return enforce(conn, self.cost())  # late, because the rows of the buckets stay locked until the commit

    def messages(self):
        return self.conn.execute("SELECT count(*) FROM messages WHERE org = %s", [self.org]).fetchone()[0]

    def test_a_message_and_its_tokens_commit_or_roll_back_together(self):
        for left in (2, 1, 0):
            with self.conn.transaction():
                self.assertAlmostEqual(self.post(self.conn).limits[0]["value"], left, delta=0.1)
        with self.assertRaises(Denied) as caught, self.conn.transaction():
            self.post(self.conn)
        decision = caught.exception.decision
        self.assertEqual((decision.ok, decision.denied_by), (False, ["per_user"]))
        self.assertTrue(timedelta(minutes=10) < decision.retry_after <= timedelta(minutes=20), decision)
        self.assertEqual([one["denied"] for one in decision.limits], [True, False])
        self.assertEqual(self.messages(), 3)

        # The error of another statement gives the tokens back.
        other = f"user {uuid.uuid4()}"
        with self.assertRaises(errors.DivisionByZero), self.conn.transaction():
            self.assertTrue(limit(self.conn, self.cost(other)).ok)
            self.conn.execute("SELECT 1 / 0")
        self.assertEqual([one["value"] for one in limit(self.conn, self.cost(other)).limits][0], 2)
        self.assertTrue(limit(self.conn, self.cost(other)).ok)
        self.assertEqual(limit(self.conn, self.cost()).denied_by, ["per_org", "per_user"])

    def test_without_autocommit_the_tokens_are_spent_at_the_commit(self):
        with connect() as conn:
            self.assertTrue(limit(conn, self.cost()).ok)
            conn.rollback()
            self.assertEqual(limit(conn, self.cost()).limits[0]["value"], 2)
            conn.commit()
            self.assertAlmostEqual(limit(conn, self.cost()).limits[0]["value"], 1, delta=0.1)

    def test_the_call_can_be_prepared_or_bound_by_the_client(self):
        query = "SELECT ok FROM rate_limit.limit_all_with(%s)"
        for _ in range(2):
            self.assertTrue(self.conn.execute(query, [Jsonb(self.cost())], prepare=True).fetchone()[0])
        cursor = psycopg.ClientCursor(self.conn)
        self.assertTrue(cursor.execute(query, [Jsonb(self.cost())]).fetchone()[0])
        self.assertFalse(cursor.execute(query, [json.dumps(self.cost())]).fetchone()[0])

    def test_many_threads_never_exceed_the_limit(self):
        for isolation in psycopg.IsolationLevel.READ_COMMITTED, psycopg.IsolationLevel.SERIALIZABLE:
            self.org = f"org {uuid.uuid4()}"

            def caller(isolation=isolation):
                allowed = 0
                with connect(autocommit=True) as conn:
                    conn.isolation_level = isolation
                    for _ in range(3):
                        cost = self.cost(f"user {uuid.uuid4()}")
                        allowed += with_retries(conn, lambda conn: limit(conn, cost)).ok
                return allowed

            with ThreadPoolExecutor(8) as threads:
                self.assertEqual(sum(task.result() for task in [threads.submit(caller) for _ in range(8)]), 5)

    def test_a_conflict_is_retried(self):
        attempts = []

        def work(conn):
            conn.execute("SELECT 1 FROM messages")  # takes the snapshot
            attempts.append(len(attempts))
            if len(attempts) == 1:
                self.assertTrue(limit(self.conn, self.cost()).ok)  # another session commits meanwhile
            return self.post(conn)

        with connect(autocommit=True) as conn:
            conn.isolation_level = psycopg.IsolationLevel.SERIALIZABLE
            limit(self.conn, self.cost())
            self.assertTrue(with_retries(conn, work).ok)
            self.assertEqual((len(attempts), self.messages()), (2, 1))
            with self.assertRaisesRegex(ValueError, "the connection is in a transaction"), conn.transaction():
                with_retries(conn, work)

    def test_slots_are_held_until_they_are_released(self):
        acquire = """
            SELECT ok, lease_id, extract(epoch FROM retry_after)::float8, value
            FROM rate_limit.acquire_with('slots', %s, capacity => %s, lease => %s)"""
        options = [self.user, 1, timedelta(minutes=1)]
        ok, lease, retry_after, value = self.conn.execute(acquire, options).fetchone()
        self.assertEqual((ok, retry_after, value), (True, None, 0))
        ok, none, retry_after, value = self.conn.execute(acquire, options).fetchone()
        self.assertEqual((ok, none, value), (False, None, 0))
        self.assertTrue(0 < retry_after <= 60)
        renew = "SELECT rate_limit.renew('slots', %s, %s, %s)"
        self.assertTrue(self.conn.execute(renew, [self.user, lease, timedelta(minutes=1)]).fetchone()[0])
        for expected in (True, False):
            release = self.conn.execute("SELECT rate_limit.release('slots', %s, %s)", [self.user, lease])
            self.assertEqual(release.fetchone()[0], expected)
        # Slots together with tokens, under one lease.
        decision = enforce(self.conn, [item("reports", self.user, count=2), item("per_user", self.user)])
        release = self.conn.execute(
            "SELECT rate_limit.release('reports', %s, %s)", [self.user, decision.limits[0]["lease_id"]])
        self.assertTrue(release.fetchone()[0])

    def test_an_estimate_is_corrected_to_the_actual_usage(self):
        def tokens(count):
            return [{"name": "llm_tokens", "key": self.user, "kind": "token_bucket", "rate": 100, "period": "1 day", "count": count}]

        enforce(self.conn, tokens(40))
        for correct, left in ("charge_all_with", -10), ("credit_all_with", 60):
            limits = self.conn.execute(f"SELECT rate_limit.{correct}(%s)", [Jsonb(tokens(70))]).fetchone()[0]
            self.assertAlmostEqual(limits[0]["value"], left, delta=1)
        balances = self.conn.execute("SELECT limits FROM rate_limit.check_all_with(%s)", [Jsonb(tokens(0))]).fetchone()[0]
        self.assertAlmostEqual(balances[0]["value"], 60, delta=1)

    def test_a_malformed_call_reports_what_is_wrong(self):
        good = item("per_user", self.user)
        for calls, message in [
            ({}, "invalid_call: the argument is of type object, not an array"),
            (None, "invalid_call: the argument is of type null, not an array"),
            ([], "invalid_call: the call names no limit"),
            ([good, {**good, "key": 7}], 'invalid_call: element 2: the field "key" is of type number, not string'),
            ([{**good, "period": "soon"}], 'invalid_limit: element 1: the period "soon" is not an interval'),
            ([{**good, "count": 4}], "count_exceeds_capacity: "),
        ]:
            with self.assertRaises(errors.InvalidParameterValue) as caught:
                limit(self.conn, calls)
            diagnostics = caught.exception.diag
            self.assertTrue(diagnostics.message_primary.startswith(message), diagnostics.message_primary)
            self.assertEqual(diagnostics.sqlstate, "22023")
            self.assertTrue(diagnostics.message_hint)
        self.assertEqual(limit(self.conn, [good]).limits[0]["value"], 2)


# The same, with the other styles in which the database can write intervals.
class RateLimitsInSqlStandard(RateLimits):
    interval_style = "sql_standard"


class RateLimitsInIso8601(RateLimits):
    interval_style = "iso_8601"


class RateLimitsInPostgresVerbose(RateLimits):
    interval_style = "postgres_verbose"


if __name__ == "__main__":
    unittest.main()
