"""Rate limits in the application's own PostgreSQL, with psycopg 3."""

import random
import time
from dataclasses import dataclass
from datetime import timedelta

from psycopg import errors
from psycopg.pq import TransactionStatus
from psycopg.types.json import Jsonb


@dataclass(frozen=True)
class Decision:
    ok: bool
    retry_after: timedelta | None  # after a denial, the time until the same call would be allowed
    denied_by: list[str]  # the names of the limits that denied the call
    limits: list[dict]  # for each element of the call: name, key, denied, value (the balance), and lease_id of slots


class Denied(Exception):
    """A limit denied the call. Raised in a `with conn.transaction()` block, it rolls the block back."""

    def __init__(self, decision):
        super().__init__(f"denied by {', '.join(decision.denied_by)}: retry after {decision.retry_after}")
        self.decision = decision


def limit(conn, calls):
    """Takes tokens, all or none: in the transaction of the connection, or in one of its own in autocommit.

    A malformed call raises psycopg.errors.InvalidParameterValue. After an error, roll the transaction back.
    """
    # Seconds: psycopg reads an interval only if the IntervalStyle of the role or database is `postgres`.
    query = "SELECT ok, extract(epoch FROM retry_after)::float8, denied_by, limits FROM rate_limit.limit_all_with(%s)"
    ok, seconds, denied_by, limits = conn.execute(query, [Jsonb(calls)]).fetchone()
    return Decision(ok, None if seconds is None else timedelta(seconds=seconds), denied_by, limits)


def enforce(conn, calls):
    """Like `limit`, but raises `Denied` if the call is denied."""
    decision = limit(conn, calls)
    if not decision.ok:
        raise Denied(decision)
    return decision


def with_retries(conn, work):
    """Runs work(conn) in a transaction of its own, and again after a conflict, at most ten times."""
    if conn.info.transaction_status != TransactionStatus.IDLE:
        raise ValueError("the connection is in a transaction: only the whole transaction can be retried")
    for attempt in range(1, 11):
        try:
            with conn.transaction():
                return work(conn)
        except (errors.SerializationFailure, errors.DeadlockDetected):
            if attempt == 10:
                raise
        # A random pause of up to 10 ms, then 20 ms, 40 ms, ..: so that the same transactions do not meet again.
        time.sleep(random.uniform(0, 0.005 * 2**attempt))
