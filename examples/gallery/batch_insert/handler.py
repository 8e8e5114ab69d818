"""Measurements of a whole batch in one transaction; a bad one fails alone.

A row is named by its record's topic, partition and offset, so a batch that is handled twice adds nothing. A value that
is no measurement is refused here, by its place in the batch. If PostgreSQL refuses a row, the batch raises `DataError`:
the worker then calls the handler again with each record alone, and the policy's rule fails the one at fault.

    CREATE TABLE measurements (
        topic text, epoch int, partition int, "offset" bigint, sensor text NOT NULL, celsius numeric(5, 2) NOT NULL,
        PRIMARY KEY (topic, epoch, partition, "offset")
    )
"""

from __future__ import annotations

import os

import psycopg
from psycopg_pool import ConnectionPool

from fleet_consumer import Fatal, Record, RetryAfter

INSERT = """
    INSERT INTO measurements (topic, epoch, partition, "offset", sensor, celsius)
    SELECT * FROM unnest(%s::text[], %s::int[], %s::int[], %s::bigint[], %s::text[], %s::float8[])
    ON CONFLICT DO NOTHING
"""
EPOCH = int(os.environ.get("TOPIC_EPOCH", "0"))  # one more each time that the topic is created again
CONNECT_S = 5.0
STATEMENT_S = 10
LIMITS = {
    "connect_timeout": 5,
    "keepalives_idle": 5,
    "keepalives_interval": 2,
    "keepalives_count": 3,
    "tcp_user_timeout": 10_000,  # milliseconds, for a server that is gone without a word
    "options": f"-c statement_timeout={STATEMENT_S}s",
}
"""Limits of a connection; together with CONNECT_S below `handler.timeoutSeconds`."""
PAUSE_S = 30.0

Row = tuple[str, int, int, int, str, float]
pool: ConnectionPool


def setup(context: object) -> None:
    """Open the pool."""
    global pool
    url, check = os.environ["DATABASE_URL"], ConnectionPool.check_connection
    pool = ConnectionPool(url, kwargs=LIMITS, min_size=1, timeout=CONNECT_S, check=check, open=True)


def teardown(context: object) -> None:
    """Close all connections."""
    pool.close()


def handle_batch(records: list[Record]) -> list[Fatal | RetryAfter | None]:
    """Insert all good records; return an error for each other one."""
    rows = [row_of(record) for record in records]
    good = [row for row in rows if not isinstance(row, Fatal)]
    columns = zip(*good, strict=True) if good else ([], [], [], [], [], [])
    try:
        with pool.connection() as connection:
            connection.execute(INSERT, [list(column) for column in columns])  # one statement: one time limit for all
    except psycopg.OperationalError as error:
        if not is_outage(error):
            raise
        # A result for each record, not an exception: the worker would call each record alone, and wait for each.
        return [row if isinstance(row, Fatal) else RetryAfter(PAUSE_S) for row in rows]
    return [row if isinstance(row, Fatal) else None for row in rows]


def is_outage(error: psycopg.OperationalError) -> bool:
    """True unless a row can be the cause: no connection (08, or no code), rollback (40), resources (53), stop (57)."""
    return error.sqlstate is None or error.sqlstate[:2] in ("08", "40", "53", "57")


def row_of(record: Record) -> Row | Fatal:
    """The row of a record, or the reason why it has none."""
    try:
        sensor, celsius = str(record.value["sensor"]), float(record.value["celsius"])
    except (KeyError, OverflowError, TypeError, ValueError) as error:
        return Fatal(f"no measurement: {type(error).__name__}: {error}")
    return record.topic, EPOCH, record.partition, record.offset, sensor, celsius
