"""Page views for each minute and page, counted once each although records may be handled twice.

The state is in PostgreSQL: workers can die, and partitions can move. One statement remembers which records were
counted and adds only those that are new, so both are stored, or neither. The minute is that of the record's timestamp:
a view that is retried for an hour still counts in its own minute. If PostgreSQL refuses a row, the batch raises the
error: the worker then calls the handler again with each record alone, and only the one at fault fails. Delete old rows
of `seen` once no record can come again: after the topic's retention, or after your longest redrive.

    CREATE TABLE seen (
        topic text, epoch int, partition int, "offset" bigint, minute timestamptz,
        PRIMARY KEY (topic, epoch, partition, "offset")
    );
    CREATE TABLE views (minute timestamptz, page text, count bigint NOT NULL, PRIMARY KEY (minute, page))
"""

from __future__ import annotations

import os
from datetime import UTC, datetime

import psycopg
from psycopg_pool import ConnectionPool

from fleet_consumer import Fatal, Record, RetryAfter

COUNT = """
    WITH given AS (
        SELECT * FROM unnest(%s::text[], %s::int[], %s::int[], %s::bigint[], %s::timestamptz[], %s::text[])
            AS given(topic, epoch, partition, "offset", minute, page)
    ), fresh AS (
        INSERT INTO seen SELECT topic, epoch, partition, "offset", minute FROM given
        ON CONFLICT DO NOTHING RETURNING topic, partition, "offset"
    )
    INSERT INTO views SELECT minute, page, count(*) FROM given JOIN fresh USING (topic, partition, "offset")
    GROUP BY minute, page ORDER BY minute, page -- one order in all workers, against deadlocks
    ON CONFLICT (minute, page) DO UPDATE SET count = views.count + excluded.count
"""
PAGE_BYTES_MAX = 1000  # an index row of PostgreSQL has at most 2704 bytes
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

Row = tuple[str, int, int, int, datetime, str]
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
    """Count all views of the batch; return an error for each record that is no view."""
    rows = [row_of(record) for record in records]
    good = [row for row in rows if not isinstance(row, Fatal)]
    columns = zip(*good, strict=True) if good else ([], [], [], [], [], [])
    try:
        with pool.connection() as connection:
            connection.execute(COUNT, [list(column) for column in columns])
    except psycopg.OperationalError as error:
        if not is_outage(error):
            raise
        return [row if isinstance(row, Fatal) else RetryAfter(PAUSE_S) for row in rows]
    return [row if isinstance(row, Fatal) else None for row in rows]


def is_outage(error: psycopg.OperationalError) -> bool:
    """True unless a row can be the cause: no connection (08, or no code), rollback (40), resources (53), stop (57)."""
    return error.sqlstate is None or error.sqlstate[:2] in ("08", "40", "53", "57")


def row_of(record: Record) -> Row | Fatal:
    """The record's place, its minute and its page, or the reason why it is no view."""
    page = record.value.get("page") if isinstance(record.value, dict) else None
    if not isinstance(page, str) or len(page.encode(errors="replace")) > PAGE_BYTES_MAX:
        return Fatal(f"this is no view: it has no page of at most {PAGE_BYTES_MAX} bytes")
    try:
        minute = datetime.fromtimestamp(record.timestamp // 60_000 * 60, UTC)
    except (OverflowError, ValueError, OSError):
        return Fatal(f"this is no view: its timestamp {record.timestamp} is no date")
    return record.topic, EPOCH, record.partition, record.offset, minute, page
