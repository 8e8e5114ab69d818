"""Reasons why records were given up: the most frequent ones, in steps; an unknown count never becomes zero."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from fleet_operator.planning.observation import WorkerObservation
from fleet_operator.planning.status.retry import SHOWN_MAX, failed_reasons, retry_status
from tests.unit.planning.builders import observed_group

TIMEOUT, VALUE = ("Timeout", "Timeout"), ("Exhausted", "ValueError")


def worker(pod: str = "orders-0", **failed: int) -> WorkerObservation:
    """A worker that has given up so many records of each kind, named `reason__Class`."""
    kinds = {tuple(name.split("__")): count for name, count in failed.items()}
    return WorkerObservation(pod=pod, failed=kinds)  # type: ignore[arg-type]  # pairs by their names


def entry(reason: str, error_class: str, records: int) -> dict[str, Any]:
    return {"reason": reason, "errorClass": error_class, "records": records}


def test_all_workers_counts_come_together_most_frequent_first() -> None:
    workers = [worker(Exhausted__ValueError=64, Timeout__Timeout=2), worker("orders-1", Exhausted__ValueError=64)]
    assert failed_reasons(workers, 130, []) == [entry(*VALUE, 128), entry(*TIMEOUT, 2)]


def test_known_reasons_survive_restarts_and_silence() -> None:
    before = failed_reasons([worker(Exhausted__ValueError=64)], 64, [])
    assert failed_reasons([worker(Exhausted__ValueError=2)], 66, before) == before, "the worker has begun again"
    assert failed_reasons([worker()], 64, before) == before
    assert failed_reasons([], None, before) == before


def test_an_emptied_failed_topic_ends_it() -> None:
    before = failed_reasons([worker(Exhausted__ValueError=64)], 64, [])
    assert failed_reasons([worker(Exhausted__ValueError=64)], 0, before) == []
    status = retry_status(observed_group(failed_records=0), None, {"failed": 64, "failedReasons": before}, [])
    assert status == {"failed": 0}


def test_kinds_of_running_workers_are_not_hidden_by_older_ones() -> None:
    older = [entry("Exhausted", f"Older{n}", 1024) for n in range(SHOWN_MAX)]
    shown = failed_reasons([worker(Timeout__Timeout=1)], 5000, older)
    assert shown[0] == entry(*TIMEOUT, 1)
    assert len(shown) == SHOWN_MAX


def test_kinds_that_are_equally_frequent_do_not_change_places() -> None:
    before = failed_reasons([worker(Fatal__B=64)], None, [])
    workers = [worker(Fatal__A=128, Fatal__B=128, Fatal__C=128, Fatal__D=128, Fatal__E=128, Fatal__F=128)]
    shown = failed_reasons(workers, None, before)
    assert failed_reasons(workers, None, shown) == shown


def test_a_kind_without_a_class_has_none() -> None:
    assert failed_reasons([WorkerObservation(pod="a", failed={("Breaker", ""): 4})], 4, []) == [
        {"reason": "Breaker", "records": 4}
    ]


def test_damaged_entries_of_a_status_are_no_obstacle() -> None:
    damaged: list[dict[str, Any]] = [{}, {"reason": "Fatal", "records": "many"}, {"reason": "Fatal", "records": -5}]
    assert {each["records"] for each in failed_reasons([], 5, damaged)} <= {0}


KINDS = st.dictionaries(st.sampled_from([("Fatal", f"C{n}") for n in range(9)]), st.integers(0, 10**6), max_size=9)


@given(st.lists(st.lists(KINDS, max_size=3), max_size=6))
def test_it_is_short_and_never_falls_while_a_kind_stays(polls: list[list[dict[tuple[str, str], int]]]) -> None:
    shown: list[dict[str, Any]] = []
    for poll in polls:
        workers = [WorkerObservation(pod=str(n), failed=failed) for n, failed in enumerate(poll)]
        before, shown = shown, failed_reasons(workers, None, shown)
        assert len(shown) <= SHOWN_MAX
        assert failed_reasons(workers, None, shown) == shown, "the same picture changes nothing"
        counts = {each["errorClass"]: each["records"] for each in before}
        assert all(each["records"] >= counts.get(each["errorClass"], 0) for each in shown)
