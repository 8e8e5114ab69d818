"""Handlers of the gallery that write to PostgreSQL and to an object store: the same effect once, whatever is repeated,
and nothing lost while the store is down."""

from __future__ import annotations

import ast
import gzip
import json
import random
import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from importlib import import_module
from typing import Any, Final

import pytest

from fleet_consumer.record import Record
from fleet_consumer.retry.failure import Failure
from tests.examples.gallery.packages import GALLERY
from tests.examples.gallery.performed import Performed, manifests, performed, record
from tests.examples.gallery.postgres import Postgres
from tests.support.object_store import ObjectStore
from tests.support.waiting import eventually

Opened = Callable[[str], Performed]


def tables(name: str) -> list[str]:
    """The statements at the end of a handler's docstring."""
    text = ast.get_docstring(ast.parse((GALLERY / name / "handler.py").read_text())) or ""
    return [each for each in text[text.index("CREATE TABLE") :].split(";") if each.strip()]


@pytest.fixture
def opened(postgres: Postgres, monkeypatch: pytest.MonkeyPatch) -> Iterator[Opened]:
    """Set up an example's handler with its tables, empty."""
    monkeypatch.setenv("DATABASE_URL", postgres.url)
    with ExitStack() as ends:

        def open_one(name: str) -> Performed:
            for statement in tables(name):
                (table,) = re.findall(r"CREATE TABLE (\w+)", statement)
                postgres.rows(f"DROP TABLE IF EXISTS {table}")
                postgres.rows(statement)
            handler = ends.enter_context(performed(name))
            monkeypatch.setattr(import_module(f"{name}.handler").pool, "timeout", 1.0)
            return handler

        yield open_one


def customers(postgres: Postgres) -> list[tuple[Any, ...]]:
    return postgres.rows("SELECT id, name, deleted FROM customers ORDER BY id")


def test_upsert_keeps_the_newest_change_in_any_order(opened: Opened, postgres: Postgres) -> None:
    handler = opened("database_upsert")
    first, second = (record({"name": name}, b"c1") for name in ("Ada", "Ada L."))
    left = record(None, b"c1")
    assert handler.verdicts(first, first, second) == [None] * 3
    assert customers(postgres) == [("c1", "Ada L.", False)]
    assert handler.verdicts(first) == [None], "late, after a retry"
    assert customers(postgres) == [("c1", "Ada L.", False)]
    assert handler.verdicts(left, second) == [None, None]
    assert customers(postgres) == [("c1", None, True)], "a late change does not create a deleted customer again"


def test_upsert_fails_what_the_database_refuses_and_waits_for_a_database(opened: Opened, postgres: Postgres) -> None:
    handler = opened("database_upsert")
    assert handler.failed(record({"name": "nul \0"}, b"c2")) == "fatal: PostgreSQL refuses this customer: DataError"
    values: tuple[object, ...] = ([], "", 0, False, {"name": 5}, {"email": ["a"]})
    for value in values:
        assert (
            handler.failed(record(value, b"c2"))
            == "fatal: a change is an object whose name and email are strings or null"
        )
    long = random.Random(7).randbytes(6000).hex().encode()
    assert "ProgramLimitExceeded" in handler.failed(record({}, long))
    assert customers(postgres) == []
    assert handler.failed(record({}, None)) == "fatal: a change without a key names no customer"
    kept = record({"name": "Bo"}, b"c3")
    postgres.kill()
    try:
        assert handler.retried(kept) == [None]
    finally:
        postgres.start()
    eventually(lambda: handler.verdicts(kept) == [None], what="the pool to connect again")
    assert customers(postgres) == [("c3", "Bo", False)]


def measurements(postgres: Postgres) -> list[tuple[Any, ...]]:
    return postgres.rows('SELECT "offset", sensor, celsius::text FROM measurements ORDER BY "offset"')


def test_batch_is_inserted_once_without_its_bad_rows(opened: Opened, postgres: Postgres) -> None:
    handler = opened("batch_insert")
    batch = [record({"sensor": "s1", "celsius": value}) for value in (20.5, "warm", 21)] + [record({"celsius": 1})]
    batch += [record({"sensor": "s1", "celsius": 10**400}), record(None), record(b"{")]
    found = handler.verdicts(*batch)
    assert [None if each is None else str(each.reason) for each in found] == [  # type: ignore[union-attr]
        *(None, "fatal", None, "fatal", "fatal", "fatal", "undecodable")
    ]
    handler.verdicts(*batch)
    assert measurements(postgres) == [(batch[0].offset, "s1", "20.50"), (batch[2].offset, "s1", "21.00")]


def test_row_that_the_database_refuses_fails_alone(opened: Opened, postgres: Postgres) -> None:
    handler = opened("batch_insert")
    good, hot, last = (record({"sensor": "s1", "celsius": value}) for value in (1, 99_999, 2))
    first, refused, third = handler.verdicts(good, hot, last)
    assert (first, third) == (None, None)
    assert "NumericValueOutOfRange" in str(refused)
    assert "exception=DataError" in str(refused), "the rule of the policy"
    assert [row[0] for row in measurements(postgres)] == [good.offset, last.offset]


def test_batch_waits_as_a_whole_while_the_database_is_down(opened: Opened, postgres: Postgres) -> None:
    handler = opened("batch_insert")
    batch = [record({"sensor": "s1", "celsius": value}) for value in range(20)]
    postgres.kill()
    try:
        assert handler.retried(*batch) == [30.0] * 20
    finally:
        postgres.start()
    eventually(lambda: handler.verdicts(*batch) == [None] * 20, what="the pool to connect again")
    assert len(measurements(postgres)) == 20


def test_views_are_counted_once_in_the_minute_of_their_timestamp(opened: Opened, postgres: Postgres) -> None:
    handler = opened("window_count")
    minute = 1_700_000_040_000
    views = [record({"page": page}, timestamp=minute + at) for page, at in (("/", 0), ("/", 59_999), ("/a", 1))]
    views += [record({"page": "/"}, timestamp=minute + 60_000)]
    bad = record({"pages": "/"})
    assert handler.verdicts(*views[:2]) == [None, None]
    found = handler.verdicts(*views, bad, views[0])
    assert found[:4] == [None] * 4
    assert "this is no view" in str(found[4])
    assert handler.verdicts(*views) == [None] * 4
    assert counts(postgres) == [(0, "/", 2), (0, "/a", 1), (1, "/", 1)]


def test_view_that_the_database_refuses_fails_alone(opened: Opened, postgres: Postgres) -> None:
    handler = opened("window_count")
    noise = random.Random(7).randbytes(6000).hex()  # no compression makes this fit into an index row
    good, *bad, last = (record({"page": page}) for page in ("/", noise, "nul \0", "half \ud800", "/a"))
    bad.append(record({"page": "/"}, timestamp=2**60))
    found = handler.verdicts(good, *bad, last)
    assert (found[0], found[-1]) == (None, None)
    assert all(isinstance(each, Failure) for each in found[1:-1]), found
    assert [row[1] for row in counts(postgres)] == ["/", "/a"]


def test_error_that_no_outage_causes_is_not_the_whole_batchs(
    opened: Opened, postgres: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the bound of the page's length, PostgreSQL refuses the row with an OperationalError of class 54."""
    handler = opened("window_count")
    monkeypatch.setattr(import_module("window_count.handler"), "PAGE_BYTES_MAX", 100_000)
    noise = random.Random(7).randbytes(6000).hex()
    good, long, last = (record({"page": page}) for page in ("/", noise, "/a"))
    first, refused, third = handler.verdicts(good, long, last)
    assert (first, third) == (None, None)
    assert "ProgramLimitExceeded" in str(refused)


def counts(postgres: Postgres) -> list[tuple[Any, ...]]:
    first = "SELECT min(minute) FROM views"
    return postgres.rows(
        f"SELECT (extract(epoch FROM minute - ({first})) / 60)::int, page, count FROM views ORDER BY minute, page"
    )


def test_views_wait_while_the_database_is_down(opened: Opened, postgres: Postgres) -> None:
    handler = opened("window_count")
    views = [record({"page": "/"}) for _ in range(3)]
    postgres.kill()
    try:
        assert handler.retried(*views) == [30.0] * 3
    finally:
        postgres.start()
    eventually(lambda: handler.verdicts(*views) == [None] * 3, what="the pool to connect again")
    assert counts(postgres) == [(0, "/", 3)]


COUNTED: Final = {
    "database_upsert": ({"name": "Ada"}, "SELECT sum(source_offset) FROM customers"),
    "batch_insert": ({"sensor": "s", "celsius": 1}, "SELECT count(*) FROM measurements"),
    "window_count": ({"page": "/"}, "SELECT sum(count)::int FROM views"),
}
"""For each handler of PostgreSQL a good value, and a sum over the rows that such records lead to."""


@pytest.mark.parametrize("name", COUNTED)
def test_other_topics_and_a_topic_created_again_have_their_own_effects(
    opened: Opened, postgres: Postgres, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    value, total = COUNTED[name]
    handler = opened(name)
    sums = []
    for topic, offset, epoch in (("a", 9, 0), ("b", 9, 0), ("a", 9, 0), ("a", 1, 1), ("a", 1, 1)):
        monkeypatch.setattr(import_module(f"{name}.handler"), "EPOCH", epoch)
        assert handler.verdicts(record(value, topic=topic, offset=offset)) == [None]
        sums.append(int(postgres.rows(total)[0][0]))
    assert sums == ([9, 18, 18, 10, 10] if name == "database_upsert" else [1, 2, 2, 3, 3])


@pytest.mark.parametrize("name", COUNTED)
def test_statement_that_hangs_ends_before_the_workers_time_limit(opened: Opened, postgres: Postgres, name: str) -> None:
    value, total = COUNTED[name]
    table = total.rpartition(" ")[2]
    handler = opened(name)
    module = import_module(f"{name}.handler")
    (group,) = manifests(name)[1]
    with module.pool.connection() as connection:
        (limit_ms,) = connection.execute(
            "SELECT setting::int FROM pg_settings WHERE name = 'statement_timeout'"
        ).fetchone()
        connection.execute("SET statement_timeout = '300ms'")
        limits = connection.info.get_parameters()
    check_s = int(limits["tcp_user_timeout"]) / 1000
    assert 0 < limit_ms / 1000 + module.CONNECT_S + check_s < group["spec"]["handler"]["timeoutSeconds"]
    with psycopg_connection(postgres) as other:
        other.execute(f"LOCK TABLE {table}")
        assert handler.retried(record(value)) == [None if name == "database_upsert" else 30.0]
    assert handler.verdicts(record(value)) == [None]


def psycopg_connection(postgres: Postgres) -> Any:
    """A connection of another client; leaving it commits."""
    import psycopg

    return psycopg.connect(postgres.url)


@pytest.fixture
def clicks(object_store: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> Iterator[Performed]:
    settings = {"BUCKET": object_store.bucket, "S3_ENDPOINT": object_store.endpoint, "AWS_DEFAULT_REGION": "us-east-1"}
    for name, value in {**settings, **object_store.environment}.items():
        monkeypatch.setenv(name, value)
    with performed("object_store") as handler:
        yield handler


def stored(object_store: ObjectStore, topic: str) -> list[list[dict[str, Any]]]:
    """The lines of each object of a topic."""
    files = sorted((object_store.folder / topic).rglob("*.jsonl.gz"))
    return [list(map(json.loads, gzip.decompress(file.read_bytes()).splitlines())) for file in files]


def test_batch_is_one_object_that_its_repetition_writes_over(clicks: Performed, object_store: ObjectStore) -> None:
    batch = [record({"n": n}, topic="clicks-1") for n in range(3)]
    assert clicks.verdicts(*batch) == clicks.verdicts(*batch) == [None] * 3
    place = {"topic": "clicks-1", "epoch": 0, "partition": 3}
    wanted = [{**place, "offset": each.offset, "at": each.timestamp, "click": {"n": n}} for n, each in enumerate(batch)]
    assert stored(object_store, "clicks-1") == [wanted]
    assert clicks.verdicts(*batch[1:]) == [None] * 2
    lines = [(line["partition"], line["offset"]) for lines in stored(object_store, "clicks-1") for line in lines]
    assert len(lines) == 5
    assert len(set(lines)) == 3, "a reader keeps one line for each record"


def test_objects_of_other_topics_and_epochs_are_others(
    clicks: Performed, object_store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    mixed = [record({"n": 0}, topic=topic, offset=7) for topic in ("clicks-3", "clicks-4")]
    assert clicks.verdicts(*mixed) == clicks.verdicts(mixed[0], replace(mixed[0], offset=8)) == [None] * 2
    monkeypatch.setattr(import_module("object_store.handler"), "EPOCH", 1)
    assert clicks.verdicts(*mixed) == [None] * 2
    places = [[(line["topic"], line["epoch"]) for line in lines] for lines in stored(object_store, "clicks-3")]
    assert sorted(places) == [
        [("clicks-3", 0), ("clicks-3", 0)],
        [("clicks-3", 0), ("clicks-4", 0)],
        [("clicks-3", 1), ("clicks-4", 1)],
    ]


def test_batch_waits_as_a_whole_while_the_object_store_is_down(clicks: Performed, object_store: ObjectStore) -> None:
    batch: list[Record] = [record({"n": n}, topic="clicks-2") for n in range(3)]
    object_store.stop()
    try:
        assert clicks.retried(*batch) == [60.0] * 3
    finally:
        object_store.start()
    assert clicks.verdicts(*batch) == [None] * 3
    assert [len(lines) for lines in stored(object_store, "clicks-2")] == [3]
