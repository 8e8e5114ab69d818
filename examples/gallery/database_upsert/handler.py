"""Keep the newest state of each customer in PostgreSQL, from a topic of changes with the customer's id as key.

A row has the offset of the change that wrote it, and an older change does not replace a newer change. So a change that
is handled twice, or late because it was retried, has no effect. A deleted customer stays as a row with `deleted`:
without the offset in this row, a late change would create the customer again.

    CREATE TABLE customers (
        topic text, id text, name text, email text, deleted boolean NOT NULL,
        source_epoch int NOT NULL, source_offset bigint NOT NULL, PRIMARY KEY (topic, id)
    )
"""

from __future__ import annotations

import os

import psycopg
from psycopg.errors import ProgramLimitExceeded  # raised for a key that is too long for an index
from psycopg_pool import ConnectionPool

from fleet_consumer import Fatal, Record

UPSERT = """
    INSERT INTO customers (topic, id, name, email, deleted, source_epoch, source_offset)
    VALUES (%(topic)s, %(id)s, %(name)s, %(email)s, %(deleted)s, %(epoch)s, %(offset)s)
    ON CONFLICT (topic, id) DO UPDATE SET
        name = excluded.name, email = excluded.email, deleted = excluded.deleted,
        source_epoch = excluded.source_epoch, source_offset = excluded.source_offset
    WHERE (customers.source_epoch, customers.source_offset) < (excluded.source_epoch, excluded.source_offset)
"""
EPOCH = int(os.environ.get("TOPIC_EPOCH", "0"))  # raised by one each time the topic is created again
CONNECT_S = 5.0
"""Maximum wait for a connection, in seconds. Then `PoolTimeout` is raised, and the record is retried."""

STATEMENT_S = 10
LIMITS = {
    "connect_timeout": 5,
    "keepalives_idle": 5,
    "keepalives_interval": 2,
    "keepalives_count": 3,
    "tcp_user_timeout": 10_000,  # milliseconds; detects a server that vanished without closing the connection
    "options": f"-c statement_timeout={STATEMENT_S}s",
}
"""Time limits of a connection, which together with CONNECT_S must stay below `handler.timeoutSeconds`."""

pool: ConnectionPool


def setup(context: object) -> None:
    """Open the pool, which has a connection for each concurrent call. The pool replaces broken connections."""
    global pool
    size = int(os.environ.get("POOL_SIZE", "4"))
    url, check = os.environ["DATABASE_URL"], ConnectionPool.check_connection
    pool = ConnectionPool(url, kwargs=LIMITS, min_size=1, max_size=size, timeout=CONNECT_S, check=check, open=True)


def teardown(context: object) -> None:
    """Close all connections."""
    pool.close()


def handle(record: Record) -> None:
    """Write one change. `OperationalError` (no database, a deadlock) is not caught, so the record is retried."""
    if record.key is None:
        raise Fatal("a change without a key names no customer")
    change = {} if record.value is None else record.value  # None: a tombstone
    if not isinstance(change, dict) or not all(isinstance(change.get(name), str | None) for name in ("name", "email")):
        raise Fatal("a change is an object whose name and email are strings or null")
    row = {
        "topic": record.topic,
        "epoch": EPOCH,
        "id": record.key,
        "name": change.get("name"),
        "email": change.get("email"),
        "deleted": record.value is None,
        "offset": record.offset,  # a key is always in the same partition, so its offsets are in order
    }
    try:
        with pool.connection() as connection:
            connection.execute(UPSERT, row)
    except (psycopg.DataError, psycopg.IntegrityError, ProgramLimitExceeded) as error:
        raise Fatal(f"PostgreSQL refuses this customer: {type(error).__name__}") from error
