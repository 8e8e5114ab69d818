"""Insert the measurements of a batch in one transaction; only bad records fail.

The key of a row is its record's topic, partition and offset, so a batch that is handled twice adds no rows. A value
that is not a measurement fails here, as the result of its record. If PostgreSQL refuses a row, the batch raises
`DataError`: the worker then calls the handler with each record alone, and the policy's rule fails the bad record.

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
EPOCH = int(os.environ.get("TOPIC_EPOCH", "0"))  # raised by one each time the topic is created again
CONNECT_S = 5.0
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
PAUSE_S = 30.0

Row = tuple[str, int, int, int, str, float]
pool: ConnectionPool


def setup(context: object) -> None:
    """Open the connection pool."""
    global pool
    url, check = os.environ["DATABASE_URL"], ConnectionPool.check_connection
    pool = ConnectionPool(url, kwargs=LIMITS, min_size=1, timeout=CONNECT_S, check=check, open=True)


def teardown(context: object) -> None:
    """Close all connections."""
    pool.close()


def handle_batch(records: list[Record]) -> list[Fatal | RetryAfter | None]:
    """Insert all valid records; return an error for each invalid record."""
    rows = [row_of(record) for record in records]
    good = [row for row in rows if not isinstance(row, Fatal)]
    columns = zip(*good, strict=True) if good else ([], [], [], [], [], [])
    try:
        with pool.connection() as connection:
            connection.execute(INSERT, [list(column) for column in columns])  # one statement, so one time limit
    except psycopg.OperationalError as error:
        if not is_outage(error):
            raise
        # After an exception, the worker would call the handler for each record alone, and wait for each call.
        return [row if isinstance(row, Fatal) else RetryAfter(PAUSE_S) for row in rows]
    return [row if isinstance(row, Fatal) else None for row in rows]


def is_outage(error: psycopg.OperationalError) -> bool:
    """True for errors that no row causes: no connection (08, or no code), rollback (40), resources (53), stop (57)."""
    return error.sqlstate is None or error.sqlstate[:2] in ("08", "40", "53", "57")


def row_of(record: Record) -> Row | Fatal:
    """The row of a record; Fatal with the reason if the value is not a measurement."""
    try:
        sensor, celsius = str(record.value["sensor"]), float(record.value["celsius"])
    except (KeyError, OverflowError, TypeError, ValueError) as error:
        return Fatal(f"no measurement: {type(error).__name__}: {error}")
    return record.topic, EPOCH, record.partition, record.offset, sensor, celsius
