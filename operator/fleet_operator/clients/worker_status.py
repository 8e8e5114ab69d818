"""A worker's own account of its membership, over its `/member` endpoint.

DescribeGroups does not report the generation; the workers know it. This is a courtesy for people reading status: the
operator may run where pods cannot be reached, so no answer is an ordinary outcome and never an error.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable
from dataclasses import replace
from itertools import islice
from typing import Any, Final

import aiohttp

from fleet_consumer.contract import failure_reasons
from fleet_consumer.contract.pod import MEMBER_PAGE
from fleet_consumer.contract.skips import RECORDS_MAX, PassedBy, Place
from fleet_operator.api.v1alpha1.conditions import MESSAGE_CHARACTERS_MAX
from fleet_operator.api.v1alpha1.consumergroup import REPLICAS_MAX
from fleet_operator.clients.bodies import read_body
from fleet_operator.planning import times
from fleet_operator.planning.foreign_json import read_json
from fleet_operator.planning.lag import lag_bucket
from fleet_operator.planning.observation import CLOSED, Gap, StuckPartition, WorkerObservation, WorkerRejoin
from fleet_operator.planning.status.consumergroup import STUCK_MAX, STUCK_MESSAGE_MAX
from fleet_operator.planning.status.members import ID_CHARACTERS_MAX, TOPIC_CHARACTERS_MAX
from fleet_operator.planning.status.problems import DEPLOYMENT_REASONS
from fleet_operator.planning.work import RecordInHand, WorkObservation

log = logging.getLogger(__name__)

ANSWER_SECONDS: Final = 2.0
GENERATION_MAX: Final = 2**31 - 1
OFFSET_MAX: Final = 2**63 - 1
ANSWER_BYTES_MAX: Final = 1 << 20
"""No more than honest reports need: workers of earlier images list each paused and each stuck partition, so that 5,000
behind an open breaker take 0.8 MB. A larger report is dropped, and its worker has not answered: pods run other people's
code."""
WORD_CHARACTERS_MAX: Final = 128
REASON_CHARACTERS_MAX: Final = 255
REJOINS_MAX: Final = 20
KINDS_MAX: Final = 20
"""Kinds of failures, as many as a worker sends. So are the RECORDS_MAX skips."""
SLOTS_MAX: Final = 1024
"""Calls of a handler at once, as the settings of a worker allow."""
IN_HAND_MAX: Final = 100
"""Records in hand, as many as a worker sends."""
GAPS_MAX: Final = 200
"""Gaps decide nothing: the status counts them, also those that only the observer sees."""


class WorkerStatusClient:
    """One shared session. `open` and `close` on the event loop, once each."""

    def __init__(self) -> None:
        self._session: aiohttp.ClientSession | None = None

    async def open(self) -> None:
        """Make the session; connects to nothing."""
        self._session = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=ANSWER_SECONDS))

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()

    async def member(self, pod: str, ip: str, port: int, uid: str) -> WorkerObservation | None:
        """The report of the worker in the pod with this uid; None without an answer that can be read."""
        assert self._session is not None, "opened before use"
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
    """The JSON of `/member`; None when it is not such JSON.

    What is kept is bounded by what honest workers send and the status shows: a report stays for minutes, and a tenant
    may have hundreds of pods that send anything.
    """
    try:
        answer = read_json(body)
        error = answer.get("error") or {}
        ended = answer.get("ended") or {}
        breaker = answer.get("breaker")
        return WorkerObservation(
            pod=pod,
            # No member of a group has an id that was cut, so that such a worker counts as foreign, and scaling holds.
            member_id=_text(answer.get("memberId"), ID_CHARACTERS_MAX),
            generation=_number(answer.get("generation", -1), GENERATION_MAX),
            state=_text(answer.get("state")),
            stuck=_stuck_partitions(answer.get("stuck") or ()),
            error_reason=_text(error.get("reason")),
            error_message=_text(error.get("message"), MESSAGE_CHARACTERS_MAX),
            ended_reason=_text(ended.get("reason")),
            ended_message=_text(ended.get("message"), MESSAGE_CHARACTERS_MAX),
            ended_since=_time(ended.get("since")),
            breaker=_text(breaker["state"]) if breaker else CLOSED,
            # In steps: that one record more has failed is no news to reconcile a group for.
            failed={
                _kind(entry): lag_bucket(_number(entry["records"], OFFSET_MAX))
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
    """The reason why a record failed for good, in the API's word, and the class of the error."""
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
    """A worker's work; None for one of an earlier image, which reports none. Raises ValueError for sums below zero."""
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
        raise ValueError(f"{place} in hand since {since} is out of range")
    return RecordInHand(*place, since)


def _stuck_partitions(entries: Iterable[dict[str, Any]]) -> tuple[StuckPartition, ...]:
    """The oldest, which the status may show, the oldest error of the deployment, which it names, and of the others the
    places of as many as may decide.

    Each stuck partition counts a worker against shrinking (planning/scaling/load.py): with as many as the largest fleet
    has workers, those that are left out let none shrink. A fleet may grow for these, as where no worker can be reached.
    """
    found = sorted(map(_stuck, entries), key=lambda each: (int(each.since), each.topic, each.partition))
    shown, rest = found[:STUCK_MAX], found[STUCK_MAX:]
    named = [each for each in rest if each.reason in DEPLOYMENT_REASONS][:1]
    others = {(each.topic, each.partition): replace(each, reason="", message="") for each in rest}
    return (*shown, *named, *islice(others.values(), REPLICAS_MAX))


def _stuck(entry: dict[str, Any]) -> StuckPartition:
    return StuckPartition(
        topic=_topic(entry),
        partition=_number(entry["partition"], GENERATION_MAX),
        offset=_number(entry["offset"], OFFSET_MAX),
        since=_time(entry.get("since")) or 0.0,
        reason=_text(entry.get("reason")),
        message=_text(entry.get("message"), STUCK_MESSAGE_MAX),
    )


def _topic(entry: dict[str, Any]) -> str:
    """A topic's name. Raises ValueError for one that Kafka does not allow, of which each character takes four bytes."""
    topic = _text(entry["topic"], TOPIC_CHARACTERS_MAX)
    if not topic.isascii():
        raise ValueError(f"{topic} is no topic")
    return topic


def _text(value: Any, most: int = WORD_CHARACTERS_MAX) -> str:
    """A text up to so many characters; empty for none. Raises TypeError for another value."""
    text = value or ""
    if not isinstance(text, str):
        raise TypeError(f"{type(text).__name__} is no text")
    return text[:most]


def _number(value: Any, most: int) -> int:
    """A number that status can hold. Raises ValueError."""
    number = int(value)
    if abs(number) > most:
        raise ValueError(f"{number} is out of range")
    return number


def _time(value: Any) -> float | None:
    """A time that may be a number or text, as epoch seconds."""
    if isinstance(value, int | float):
        return _finite(value)
    return times.from_text(value) if isinstance(value, str) else None


def _finite(value: Any) -> float:
    """A number that is finite. Raises ValueError, and OverflowError for an integer that no float holds."""
    number = float(value)
    if not math.isfinite(number):
        raise ValueError(f"{value} is not finite")
    return number
