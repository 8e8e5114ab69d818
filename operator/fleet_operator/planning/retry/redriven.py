"""Count of failed records without those that finished Redrives have put back.

The failed topic keeps a record that was put back until retention deletes it. So a run of a Redrive counts the records
in its ledger and ends with one number, `redrivenTo`: from then on, at most the sum of the topic's end offsets less this
number are failures that were not put back. The largest such number counts. The ConsumerGroup's status keeps it, so that
a Redrive may be deleted.

A number is valid only for the topic with the same id, and only for observations after the end of the run: an earlier
sum of end offsets lacks failures that the run has seen.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

from fleet_operator.planning import times
from fleet_operator.planning.observation import GroupObservation

TIME_STEP_S: Final = 1.0
"""Times in statuses are whole seconds, rounded down."""


class Redriven(NamedTuple):
    """A sum of end offsets, with the id of its topic."""

    topic_id: str
    to: int


def find_redriven(
    redrives: Iterable[Mapping[str, Any]], seen_at: float, topic_id: str | None, previous: Mapping[str, Any]
) -> Redriven | None:
    """The largest number for the topic with this id.

    `redrives` are statuses of Redrives, of which those count that had ended before the observation at `seen_at`;
    `previous` is the earlier `status.retry.redriven`.
    """
    ended = [_read(status, "failedTopicId", "redrivenTo") for status in redrives if _had_ended(status, seen_at)]
    known = [read_redriven(previous, topic_id), *(each for each in ended if each and each.topic_id == topic_id)]
    return max((each for each in known if each is not None), default=None)


def read_redriven(entry: Mapping[str, Any], topic_id: str | None) -> Redriven | None:
    """`status.retry.redriven`, if it is for the topic with this id."""
    found = _read(entry, "topicId", "to")
    return found if found is not None and found.topic_id == topic_id else None


def count_failures(seen: GroupObservation, redriven: Redriven | None) -> int | None:
    """Records of the failed topic, less those that were put back; None while unknown."""
    records, end = seen.failed_records, seen.failed_end
    # End offsets only grow. If they did not, the brokers lost records, and new ones will reuse the offsets.
    if records is None or end is None or redriven is None or redriven.to > end:
        return records
    return min(records, end - redriven.to)


def _had_ended(status: Mapping[str, Any], seen_at: float) -> bool:
    ended = times.from_text(status.get("finishedAt"))
    return status.get("phase") == "Succeeded" and ended is not None and ended + TIME_STEP_S <= seen_at


def _read(entry: Mapping[str, Any], id_name: str, to_name: str) -> Redriven | None:
    """An entry of a status; None for an unreadable one, as people may edit statuses."""
    topic_id, to = entry.get(id_name), entry.get(to_name)
    if not isinstance(topic_id, str) or not isinstance(to, int) or isinstance(to, bool) or to < 0:
        return None
    return Redriven(topic_id, to)
