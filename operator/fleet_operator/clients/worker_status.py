"""A worker's own account of its membership, over its `/member` endpoint.

DescribeGroups reports neither generation nor leader; the workers know both. This is a courtesy for people reading
status: the operator may run where pods cannot be reached, so no answer is an ordinary outcome and never an error.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any, Final

import aiohttp

from fleet_consumer.contract import failure_reasons
from fleet_consumer.contract.pod import MEMBER_PAGE
from fleet_consumer.contract.skips import PassedBy, Place
from fleet_operator.clients.bodies import read_body
from fleet_operator.planning import times
from fleet_operator.planning.foreign_json import read_json
from fleet_operator.planning.lag import lag_bucket
from fleet_operator.planning.observation import BreakerObservation, Gap, StuckPartition, WorkerObservation, WorkerRejoin

log = logging.getLogger(__name__)

ANSWER_SECONDS: Final = 2.0
GENERATION_MAX: Final = 2**31 - 1
OFFSET_MAX: Final = 2**63 - 1
TOPIC_CHARACTERS_MAX: Final = 249
ANSWER_BYTES_MAX: Final = 1 << 20
"""Enough for thousands of partitions. A larger report is dropped: pods run other people's code."""
CALLS_AT_ONCE_MAX: Final = 16
KIND_CHARACTERS_MAX: Final = 128
REASON_CHARACTERS_MAX: Final = 255
REJOINS_MAX: Final = 20


class WorkerStatusClient:
    """One shared session. `open` and `close` on the event loop, once each."""

    def __init__(self) -> None:
        self._session: aiohttp.ClientSession | None = None
        self._slots = asyncio.Semaphore(CALLS_AT_ONCE_MAX)

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
        async with self._slots:
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
    """The JSON of `/member`; None when it is not such JSON."""
    try:
        answer = read_json(body)
        error = answer.get("error") or {}
        ended = answer.get("ended") or {}
        return WorkerObservation(
            pod=pod,
            member_id=str(answer.get("memberId") or ""),
            instance_id=answer.get("instanceId"),
            generation=_number(answer.get("generation", -1), GENERATION_MAX),
            leader=bool(answer.get("leader", False)),
            assignor=str(answer.get("assignor") or ""),
            state=str(answer.get("state") or ""),
            revision=str(answer.get("revision") or ""),
            stuck=tuple(_stuck(entry) for entry in answer.get("stuck") or ()),
            error_reason=str(error.get("reason") or ""),
            error_message=str(error.get("message") or ""),
            ended_reason=str(ended.get("reason") or ""),
            ended_message=str(ended.get("message") or ""),
            ended_since=_time(ended.get("since")),
            breaker=_breaker(answer.get("breaker")),
            # In steps: that one record more has failed is no news to reconcile a group for.
            failed={
                _kind(entry): lag_bucket(_number(entry["records"], OFFSET_MAX)) for entry in answer.get("failed") or ()
            },
            revoking=answer.get("revoking") is True,
            rejoins=tuple(_rejoin(entry) for entry in (answer.get("rejoins") or ())[-REJOINS_MAX:]),
            expired=tuple(_gap(entry) for entry in answer.get("expired") or ()),
            skipped={_place(entry): _passed(entry) for entry in answer.get("skipped") or ()},
        )
    except (ValueError, TypeError, KeyError, AttributeError):
        return None


def _breaker(value: dict[str, Any] | None) -> BreakerObservation | None:
    if not value:
        return None
    percent = value.get("failurePercent")
    return BreakerObservation(
        state=str(value["state"]),
        since=_time(value.get("since")),
        failure_percent=None if percent is None else float(percent),
    )


def _kind(entry: dict[str, Any]) -> tuple[str, str]:
    """The reason why a record failed for good, in the API's word, and the class of the error."""
    reason, error_class = failure_reasons.to_api(str(entry["reason"])), str(entry.get("errorClass") or "")
    return reason[:KIND_CHARACTERS_MAX], error_class[:KIND_CHARACTERS_MAX]


def _rejoin(entry: dict[str, Any]) -> WorkerRejoin:
    before, generation = (_number(entry[key], GENERATION_MAX) for key in ("before", "generation"))
    return WorkerRejoin(before, generation, str(entry["reason"])[:REASON_CHARACTERS_MAX], entry["own"] is True)


def _place(entry: dict[str, Any]) -> Place:
    partition, offset = _number(entry["partition"], GENERATION_MAX), _number(entry["offset"], OFFSET_MAX)
    return Place(str(entry["topic"]), partition, offset)


def _gap(entry: dict[str, Any]) -> Gap:
    first, end = (_number(entry[key], OFFSET_MAX) for key in ("first", "next"))
    return Gap(str(entry["topic"]), _number(entry["partition"], GENERATION_MAX), first, end)


def _passed(entry: dict[str, Any]) -> PassedBy:
    last = entry.get("lastOffset")
    return PassedBy(_time(entry.get("at")) or 0.0, None if last is None else _number(last, OFFSET_MAX))


def _stuck(entry: dict[str, Any]) -> StuckPartition:
    return StuckPartition(
        topic=str(entry["topic"])[:TOPIC_CHARACTERS_MAX],
        partition=_number(entry["partition"], GENERATION_MAX),
        offset=_number(entry["offset"], OFFSET_MAX),
        since=_time(entry.get("since")) or 0.0,
        reason=str(entry.get("reason") or ""),
        message=str(entry.get("message") or ""),
    )


def _number(value: Any, most: int) -> int:
    """A number that status can hold. Raises ValueError."""
    number = int(value)
    if abs(number) > most:
        raise ValueError(f"{number} is out of range")
    return number


def _time(value: Any) -> float | None:
    """A time that may be a number or text, as epoch seconds."""
    if isinstance(value, int | float):
        return float(value)
    return times.from_text(value) if isinstance(value, str) else None
