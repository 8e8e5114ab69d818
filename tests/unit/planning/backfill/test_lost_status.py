"""A Backfill whose status was lost: what its attempts have left says which range they had, and how many there were."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from fleet_consumer.contract.backfill_ledger import ledger_text
from fleet_operator.planning.backfill.parsing import Kept, read_kept
from fleet_operator.planning.backfill.phase import decide
from fleet_operator.planning.problem import Problem
from fleet_operator.planning.run import Act
from tests.unit.backfill.documents import backfill_document
from tests.unit.planning.backfill.things import RANGE, RANGED, backfill, facts, ledger


def test_backfill_whose_status_was_lost_takes_up_the_range_and_the_number_of_its_attempts() -> None:
    other = replace(RANGE, ranges={0: (0, 1395)})
    before = facts(backfill=backfill(), resolved=None, resolution=other, progress=None, kept=Kept(RANGE, 3))
    first = decide(before)
    assert (first.phase, first.resolved, first.attempt) == ("Resolving", RANGE, None)
    second = decide(facts(backfill=backfill(RANGED), kept=Kept(RANGE, 3)))
    assert (second.attempt, second.act) == (3, Act.NOTHING)


def test_lost_status_next_to_another_range_or_a_lost_ledger_is_the_end() -> None:
    other = replace(RANGE, ranges={0: (0, 1395)})
    mixed = decide(facts(backfill=backfill(RANGED), resolved=other, kept=Kept(RANGE, 1)))
    assert (mixed.phase, mixed.reason) == ("Failed", "LedgerUnreadable")
    gone = Kept(Problem("LedgerUnreadable", "x"), 2)
    lost = decide(facts(backfill=backfill(), resolved=None, resolution=RANGE, kept=gone))
    assert (lost.phase, lost.reason, lost.attempt) == ("Failed", "LedgerUnreadable", 2)


def settings_map(**changes: Any) -> dict[str, Any]:
    written = {"topic": RANGE.topic, "ranges": {"0": [0, 10], "1": [5, 15]}, "clusterId": "cluster-a", "topicId": "t-1"}
    chosen: dict[str, Any] = {"keyRegex": None, "headerEquals": {}, "fromTime": 1_000, "toTime": None}
    document = backfill_document(**{**written, "filter": chosen, **changes})
    return {"data": {"backfill.json": json.dumps(document)}}


def test_attempts_of_a_lost_status_are_found_by_what_they_left() -> None:
    body, note = backfill(), {"data": {"ledger.json": ledger_text(ledger(attempt=3))}}
    kept = read_kept(body, settings_map(), note)
    assert kept is not None
    # `to` of the last minute is not in the settings: it leaves out no record.
    assert kept == Kept(replace(RANGE, to_ms=62_000, cluster_id="cluster-a", topic_id="t-1"), 3)
    assert read_kept(body, settings_map(), {"data": {}}) == replace(kept, attempt=1)
    assert read_kept(body, None, None) is None
    assert read_kept(body, None, {"data": {}}) is None, "killed before the settings were written"


def test_sample_of_a_lost_status_is_found_too() -> None:
    kept = read_kept(backfill(), settings_map(sampledFrom=2000), {"data": {}})
    assert kept is not None
    assert not isinstance(kept.resolved, Problem)
    assert kept.resolved.sampled_from == 2000


def test_attempts_of_a_lost_status_that_left_half_of_it_are_no_beginning() -> None:
    note = {"data": {"ledger.json": ledger_text(ledger())}}
    for settings, written, reason in (
        (None, note, "SettingsLost"),
        ({"data": {}}, note, "SettingsLost"),
        (settings_map(topic=5), note, "SettingsLost"),
        (settings_map(), None, "LedgerUnreadable"),
        (settings_map(), {"data": {"ledger.json": "{}"}}, "LedgerUnreadable"),
    ):
        found = read_kept(backfill(), settings, written)
        assert found is not None
        assert isinstance(found.resolved, Problem), (settings, written)
        assert found.resolved.reason == reason
