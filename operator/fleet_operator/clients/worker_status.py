"""Reads the workers' `/member` endpoint: group membership, errors and work, as each worker reports them.

For example, only workers report the generation of a group; DescribeGroups does not return it. The operator may run
where it cannot reach pods, so a missing answer is not an error.
"""

import logging
import math
from collections.abc import Iterable
from dataclasses import replace
from functools import cached_property
from itertools import islice
from typing import Any, Final

import aiohttp

from fleet_consumer.contract import failure_reasons
from fleet_consumer.contract.pod import MEMBER_PAGE
from fleet_consumer.contract.skips import RECORDS_MAX, PassedBy, Place
from fleet_operator.api.v1alpha1.conditions import MESSAGE_CHARACTERS_MAX
from fleet_operator.api.v1alpha1.consumergroup import REPLICAS_MAX
from fleet_operator.clients.kube import read_body
from fleet_operator.planning import foreign_json, lag, times
from fleet_operator.planning.observation import CLOSED, Gap, StuckPartition, WorkerObservation, WorkerRejoin
from fleet_operator.planning.status import consumergroup, members, problems
from fleet_operator.planning.work import RecordInHand, WorkObservation

log = logging.getLogger(__name__)

ANSWER_SECONDS: Final = 2.0
GENERATION_MAX: Final = 2**31 - 1
OFFSET_MAX: Final = 2**63 - 1
ANSWER_BYTES_MAX: Final = 1 << 20
"""Maximum size of a report. Workers of earlier images list each paused and stuck partition, and 5,000 partitions behind
an open breaker take 0.8 MB. A larger report may be malicious, because pods run users' code; it counts as no answer."""
WORD_CHARACTERS_MAX: Final = 128
REASON_CHARACTERS_MAX: Final = 255
REJOINS_MAX: Final = 20
KINDS_MAX: Final = 20
"""Maximum number of failure kinds (reason and error class) that are read from a report. Workers never list more."""
SLOTS_MAX: Final = 1024
"""Maximum number of handler slots (concurrency) that a worker's settings allow."""
IN_HAND_MAX: Final = 100
"""Maximum number of in-flight records that are read from a report. Workers never list more."""
GAPS_MAX: Final = 200
"""Maximum number of gaps (deleted records) that are read from a report. No decision depends on gaps: the status only
shows their number, together with gaps that the observer found."""


class WorkerStatusClient:
    """Reads reports over one shared HTTP session, which the first request creates. Used on the event loop only."""

    @cached_property
    def _session(self) -> aiohttp.ClientSession:
        return aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=ANSWER_SECONDS))

    async def close(self) -> None:
        if "_session" in vars(self):
            await self._session.close()

    async def member(self, pod: str, ip: str, port: int, uid: str) -> WorkerObservation | None:
        """Read the report of the worker in the pod with this uid; returns None without a valid answer."""
        host = f"[{ip}]" if ":" in ip else ip
        try:
            url, token = f"http://{host}:{port}{MEMBER_PAGE}", {"Authorization": f"Bearer {uid}"}
            async with self._session.get(url, headers=token, allow_redirects=False) as answer:
                if answer.status != 200:
                    return None
                body = await read_body(answer, ANSWER_BYTES_MAX)
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            log.debug("worker did not answer", extra={"pod": pod, "error": str(error)})
            return None
        if body is None:
            log.warning("report of a worker is too large", extra={"pod": pod, "bytes_max": ANSWER_BYTES_MAX})
            return None
        return parse_member(pod, body)


def parse_member(pod: str, body: bytes) -> WorkerObservation | None:
    """Parse the JSON of `/member`; returns None if it is invalid. Each list is cut to the largest length that real
    workers send, because a report stays in memory for minutes, and a tenant may have hundreds of pods that send
    arbitrary reports."""
    try:
        answer = foreign_json.read_json(body)
        error = answer.get("error") or {}
        ended = answer.get("ended") or {}
        breaker = answer.get("breaker")
        return WorkerObservation(
            pod=pod,
            # A truncated id matches no member of the group. The worker then counts as foreign, and the fleet is not
            # scaled.
            member_id=_text(answer.get("memberId"), members.ID_CHARACTERS_MAX),
            generation=_number(answer.get("generation", -1), GENERATION_MAX),
            state=_text(answer.get("state")),
            stuck=_stuck_partitions(answer.get("stuck") or ()),
            error_reason=_text(error.get("reason")),
            error_message=_text(error.get("message"), MESSAGE_CHARACTERS_MAX),
            ended_reason=_text(ended.get("reason")),
            ended_message=_text(ended.get("message"), MESSAGE_CHARACTERS_MAX),
            ended_since=_time(ended.get("since")),
            breaker=_text(breaker["state"]) if breaker else CLOSED,
            # Counts are rounded to buckets, so that a group is not reconciled for each further failed record.
            failed={
                _kind(entry): lag.lag_bucket(_number(entry["records"], OFFSET_MAX))
                for entry in (answer.get("failed") or ())[:KINDS_MAX]
            },
            revoking=answer.get("revoking") is True,
            rejoins=tuple(_rejoin(entry) for entry in (answer.get("rejoins") or ())[-REJOINS_MAX:]),
            expired=tuple(_gap(entry) for entry in (answer.get("expired") or ())[:GAPS_MAX]),
            skipped={_place(entry): _passed(entry) for entry in (answer.get("skipped") or ())[:RECORDS_MAX]},
            work=_work(answer.get("work")),
        )
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError):
        return None


def _kind(entry: dict[str, Any]) -> tuple[str, str]:
    """Convert a failure kind from a report. Returns the reason of the permanent failure, spelled as in the API, and the
    error class."""
    return failure_reasons.to_api(_text(entry["reason"])), _text(entry.get("errorClass"))


def _rejoin(entry: dict[str, Any]) -> WorkerRejoin:
    before, generation = (_number(entry[key], GENERATION_MAX) for key in ("before", "generation"))
    return WorkerRejoin(before, generation, _text(entry["reason"], REASON_CHARACTERS_MAX), entry["own"] is True)


def _place(entry: dict[str, Any]) -> Place:
    partition, offset = _number(entry["partition"], GENERATION_MAX), _number(entry["offset"], OFFSET_MAX)
    return Place(_topic(entry), partition, offset)


def _gap(entry: dict[str, Any]) -> Gap:
    first, end = (_number(entry[key], OFFSET_MAX) for key in ("first", "next"))
    return Gap(_topic(entry), _number(entry["partition"], GENERATION_MAX), first, end)


def _passed(entry: dict[str, Any]) -> PassedBy:
    last = entry.get("lastOffset")
    return PassedBy(_time(entry.get("at")) or 0.0, None if last is None else _number(last, OFFSET_MAX))


def _work(entry: dict[str, Any] | None) -> WorkObservation | None:
    """Parse a worker's busy time, records and slots; None for an earlier image, which does not report them. Raises
    ValueError."""
    if entry is None:
        return None
    busy_seconds, records = _finite(entry["busySeconds"]), _number(entry["records"], OFFSET_MAX)
    slots = _number(entry["slots"], SLOTS_MAX)
    if busy_seconds < 0 or records < 0 or slots < 1:
        raise ValueError(f"{busy_seconds} s, {records} records or {slots} slots are out of range")
    in_hand = tuple(_in_hand(each) for each in (entry.get("inHand") or ())[:IN_HAND_MAX])
    return WorkObservation(busy_seconds=busy_seconds, records=records, slots=slots, in_hand=in_hand)


def _in_hand(entry: dict[str, Any]) -> RecordInHand:
    place, since = _place(entry), _time(entry.get("since"))
    if since is None or since < 0 or place.partition < 0 or place.offset < 0:
        raise ValueError(f"{place} in flight since {since} is out of range")
    return RecordInHand(*place, since)


def _stuck_partitions(entries: Iterable[dict[str, Any]]) -> tuple[StuckPartition, ...]:
    """Parse stuck partitions, and limit their number. The result has, in this order:

    - the STUCK_MAX oldest ones, which the status shows,
    - of the others, the oldest with a reason in `DEPLOYMENT_REASONS`, if any,
    - up to REPLICAS_MAX of the others, without reason and message.

    Each stuck partition counts as one worker that must not be removed (planning/scaling/load.py). REPLICAS_MAX of them
    prevent any scale-down, so no more are kept. If partitions are omitted, a fleet may still be scaled up, as with
    unreachable workers.
    """
    found = sorted(map(_stuck, entries), key=lambda each: (int(each.since), each.topic, each.partition))
    shown, rest = found[: consumergroup.STUCK_MAX], found[consumergroup.STUCK_MAX :]
    named = [each for each in rest if each.reason in problems.DEPLOYMENT_REASONS][:1]
    others = {(each.topic, each.partition): replace(each, reason="", message="") for each in rest}
    return (*shown, *named, *islice(others.values(), REPLICAS_MAX))


def _stuck(entry: dict[str, Any]) -> StuckPartition:
    return StuckPartition(
        topic=_topic(entry),
        partition=_number(entry["partition"], GENERATION_MAX),
        offset=_number(entry["offset"], OFFSET_MAX),
        since=_time(entry.get("since")) or 0.0,
        reason=_text(entry.get("reason")),
        message=_text(entry.get("message"), consumergroup.STUCK_MESSAGE_MAX),
    )


def _topic(entry: dict[str, Any]) -> str:
    """Parse a topic name. Raises ValueError for a non-ASCII name: Kafka allows only ASCII, and other characters take up
    to 4 bytes."""
    topic = _text(entry["topic"], members.TOPIC_CHARACTERS_MAX)
    if not topic.isascii():
        raise ValueError(f"{topic} is not a topic name")
    return topic


def _text(value: Any, most: int = WORD_CHARACTERS_MAX) -> str:
    text = value or ""
    if not isinstance(text, str):
        raise TypeError(f"{type(text).__name__} is not a string")
    return text[:most]


def _number(value: Any, most: int) -> int:
    number = int(value)
    if abs(number) > most:
        raise ValueError(f"{number} is out of range")
    return number


def _time(value: Any) -> float | None:
    """Convert a time, as a number or as text, to epoch seconds; returns None for other values."""
    if isinstance(value, int | float):
        return _finite(value)
    return times.from_text(value) if isinstance(value, str) else None


def _finite(value: Any) -> float:
    """Parse a finite number. Raises ValueError, and OverflowError for an integer beyond the range of a float."""
    number = float(value)
    if not math.isfinite(number):
        raise ValueError(f"{value} is not finite")
    return number
