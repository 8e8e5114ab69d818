"""Failed records that nobody has put back, as far as finished Redrives prove that the others were. Pure.

Kafka tells only how many records the failed topic holds, and a record that was put back stays among them until
retention takes it. So a run of a Redrive counts the records that it finds in the ledger, and ends with one number,
`redrivenTo`: at any later time at most the sum of the topic's ends less this number are failures that were not put
back. The largest such number counts. The ConsumerGroup's status keeps it as well, so that a Redrive may be deleted.

A number is about one topic. It is believed only for the topic with the same id, and only in looks that were taken after
the run had ended: an older sum of ends lacks failures that the run has seen.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

from fleet_operator.planning import times
from fleet_operator.planning.observation import GroupObservation

TIME_STEP_S: Final = 1.0
"""Times in statuses are whole seconds, rounded down."""


class Redriven(NamedTuple):
    """A sum of offsets, and the topic that it is about."""

    topic_id: str
    to: int


def find_redriven(
    redrives: Iterable[Mapping[str, Any]], seen_at: float, topic_id: str | None, previous: Mapping[str, Any]
) -> Redriven | None:
    """The best number that is known for the topic with this id.

    `redrives` are statuses of Redrives, of which those count that had ended before the look at `seen_at`; `previous` is
    what was found earlier (`status.retry.redriven`).
    """
    told = [_read(status, "failedTopicId", "redrivenTo") for status in redrives if _had_ended(status, seen_at)]
    known = [read_redriven(previous, topic_id), *(each for each in told if each and each.topic_id == topic_id)]
    return max((each for each in known if each is not None), default=None)


def read_redriven(entry: Mapping[str, Any], topic_id: str | None) -> Redriven | None:
    """`status.retry.redriven`, if it is about the topic with this id."""
    found = _read(entry, "topicId", "to")
    return found if found is not None and found.topic_id == topic_id else None


def count_failures(seen: GroupObservation, redriven: Redriven | None) -> int | None:
    """The records of the failed topic, less those that are known to be put back; None while unknown."""
    records, end = seen.failed_records, seen.failed_end
    # Ends only grow. Where they have not, the brokers have lost records, and others will take their offsets.
    if records is None or end is None or redriven is None or redriven.to > end:
        return records
    return min(records, end - redriven.to)


def _had_ended(status: Mapping[str, Any], seen_at: float) -> bool:
    ended = times.from_text(status.get("finishedAt"))
    return status.get("phase") == "Succeeded" and ended is not None and ended + TIME_STEP_S <= seen_at


def _read(entry: Mapping[str, Any], id_name: str, to_name: str) -> Redriven | None:
    """People may have touched a status; what cannot be read is nothing known."""
    topic_id, to = entry.get(id_name), entry.get(to_name)
    if not isinstance(topic_id, str) or not isinstance(to, int) or isinstance(to, bool) or to < 0:
        return None
    return Redriven(topic_id, to)
