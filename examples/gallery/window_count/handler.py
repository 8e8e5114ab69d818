"""Count page views for each minute and page. Each view counts once, although its record may be handled twice.

The state is in PostgreSQL, because workers can die and partitions can move. One statement stores the counted records
and adds only new records to the counts, so both changes are stored or neither. The minute is that of the record's
timestamp, so a view that is retried for an hour counts in its original minute. If PostgreSQL refuses a row, the batch
raises the error: the worker then calls the handler with each record alone, and only the record at fault fails. Delete
old rows of `seen` once their records cannot be handled again: after the topic's retention, or your longest redrive.

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

Row = tuple[str, int, int, int, datetime, str]
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
    """Count all views of the batch; return an error for each record that is not a view."""
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
    """True for errors that no row causes: no connection (08, or no code), rollback (40), resources (53), stop (57)."""
    return error.sqlstate is None or error.sqlstate[:2] in ("08", "40", "53", "57")


def row_of(record: Record) -> Row | Fatal:
    """Topic, epoch, partition, offset, minute and page; Fatal with the reason if the record is not a view."""
    page = record.value.get("page") if isinstance(record.value, dict) else None
    if not isinstance(page, str) or len(page.encode(errors="replace")) > PAGE_BYTES_MAX:
        return Fatal(f"this is no view: it has no page of at most {PAGE_BYTES_MAX} bytes")
    try:
        minute = datetime.fromtimestamp(record.timestamp // 60_000 * 60, UTC)
    except (OverflowError, ValueError, OSError):
        return Fatal(f"this is no view: its timestamp {record.timestamp} is no date")
    return record.topic, EPOCH, record.partition, record.offset, minute, page
