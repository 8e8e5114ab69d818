"""FAILED falls when records are put back, and never below the failures that nobody has put back."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet_consumer.redrive.selection import RedriveProgress
from fleet_operator.planning import times
from fleet_operator.planning.observation import TopicObservation
from fleet_operator.planning.state.group import Redriven
from fleet_operator.planning.status.retry import count_failures, find_redriven
from tests.unit.planning.builders import NOW, facts, observation, observed_group
from tests.unit.planning.status.projecting import project

TOPIC, OTHER = "6f6e6520-0000-4000-8000-000000000001", "6f6e6520-0000-4000-8000-000000000002"


def redrive(to: int, topic_id: str = TOPIC, *, ended: float = NOW - 60, phase: str = "Succeeded") -> dict[str, Any]:
    return {"phase": phase, "finishedAt": times.to_text(ended), "failedTopicId": topic_id, "redrivenTo": to}


def counted(
    *redrives: dict[str, Any], known: Redriven | None = None, topic_id: str | None = TOPIC, end: int = 1_100
) -> tuple[int, Redriven | None]:
    """`status.retry.failed` of a group whose failed topic holds 100 records, and what its state has afterwards."""
    seen = observation(
        observed_group(failed_records=100, failed_end=end),
        topics={"_fleet.orders.failed": TopicObservation(partitions=4, topic_id=topic_id)},
    )
    after = find_redriven(redrives, NOW, topic_id, known) or known
    retry = project(facts(observation=seen, redriven=after))["retry"]
    assert isinstance(retry, dict)
    assert "redriven" not in retry, "the state has it"
    return retry["failed"], after


def test_redriven_records_do_not_count_as_failed() -> None:
    assert counted(redrive(1_070), redrive(1_020)) == (30, Redriven(TOPIC, 1_070))


def test_a_redrive_may_be_deleted() -> None:
    failed, known = counted(redrive(1_070))
    assert counted(known=known) == (failed, known)


def test_records_removed_by_retention_are_not_counted_twice() -> None:
    assert counted(redrive(900))[0] == 100


@pytest.mark.parametrize("topic_id", [OTHER, None])
def test_recreated_topic_has_no_redriven_records(topic_id: str | None) -> None:
    _, known = counted(redrive(1_070))
    assert counted(redrive(1_070), known=known, topic_id=topic_id)[0] == 100


def test_redriven_count_is_kept_while_the_topic_is_unknown() -> None:
    before = counted(redrive(1_070))
    _, known = counted(known=before[1], topic_id=None)
    assert counted(known=known) == before


def test_end_offset_that_decreased_is_ignored() -> None:
    assert counted(redrive(1_070), end=1_069)[0] == 100


@pytest.mark.parametrize("told", [redrive(1_070, ended=NOW), redrive(1_070, phase="Failed"), {"phase": "Succeeded"}])
def test_a_run_counts_once_a_poll_was_made_after_its_end(told: dict[str, Any]) -> None:
    assert counted(told)[0] == 100


@pytest.mark.parametrize("to", [-1, True, "5", None, 1.5])
def test_a_damaged_status_is_nothing_known(to: Any) -> None:
    assert find_redriven([redrive(to)], NOW, TOPIC, None) is None


def test_unknown_count_stays_unknown() -> None:
    assert count_failures(observed_group(failed_end=7), Redriven(TOPIC, 7)) is None


@given(st.data())
def test_no_failure_is_hidden_by_retention_or_redrives(data: st.DataObject) -> None:
    """Partitions as lists of "was it put back", runs that see any part of them, retention and new failures between."""
    logs: list[list[bool]] = [[] for _ in range(3)]
    starts, known = [0, 0, 0], []
    for _ in range(data.draw(st.integers(1, 6))):
        for number, log in enumerate(logs):
            log.extend([False] * data.draw(st.integers(0, 5)))
            starts[number] = data.draw(st.integers(starts[number], len(log)))
        began = list(starts)
        progress = [RedriveProgress(len(log), start=start) for log, start in zip(logs, began, strict=True)]
        for number, log in enumerate(logs):
            for offset in range(began[number], len(log)):
                if data.draw(st.booleans()):
                    log[offset] = log[offset] or data.draw(st.booleans())
                    progress[number].put_back += log[offset]
        for number, log in enumerate(logs):
            log.extend([False] * data.draw(st.integers(0, 5)))
            starts[number] = data.draw(st.integers(starts[number], len(log)))
        known.append(sum(each.redriven_to(at) for each, at in zip(progress, began, strict=True)))
        end = sum(map(len, logs))
        seen = observed_group(failed_records=end - sum(starts), failed_end=end)
        shown = count_failures(seen, Redriven(TOPIC, max(known)))
        left = sum(log[start:].count(False) for log, start in zip(logs, starts, strict=True))
        assert shown is not None
        assert left <= shown <= end - sum(starts)
