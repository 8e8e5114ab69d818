"""Outcome of one record: done, tried again later, failed or dropped, with the writes that follow.

Every method here begins writes and waits for none; `writing` sees them through. A record goes on as it was read: what
its handler was given is the handler's own, and what a handler may assign to it counts for nothing. In a retry the
record under its origin's coordinates is found anew where a failure asks for it.
"""

from __future__ import annotations

import dataclasses
import logging
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from fleet_consumer.clock import Clock
from fleet_consumer.contract.failure_reasons import FailureReason
from fleet_consumer.contract.naming import canonical_delay
from fleet_consumer.contract.policies import Policies, Policy
from fleet_consumer.contract.skips import PassedBy
from fleet_consumer.handlers.call import end_forked_child
from fleet_consumer.handlers.performing import Decoder, Outputs, Result
from fleet_consumer.librdkafka.fetched import as_read
from fleet_consumer.record import Produce, Record
from fleet_consumer.retry.failure import Drop, Failure, Retry, classify, cut, is_endpoints, traceback_of, without_words
from fleet_consumer.retry.headers import without_details
from fleet_consumer.retry.routing import Hop, ToFailed, partition_of, route, story_of
from fleet_consumer.worker.breaker.pacing import Course, Pacing
from fleet_consumer.worker.consume.outbox import Outbox, Outgoing
from fleet_consumer.worker.consume.progress import PartitionProgress, Unfinished
from fleet_consumer.worker.logs import MESSAGE_CHARACTERS_MAX, LineBudget, about, fields, place_of
from fleet_consumer.worker.stats import DONE, DROPPED, FAILED, RETRIED, Stats

LOG = logging.getLogger("fleet_consumer.worker")

TRACEBACK_EVERY_S: Final = 60.0
PLACES_MAX: Final = 1_000

ANY_OUTPUT: Final = Outputs()

Handle = Callable[[Record], Any]


class PassedOver(Exception):
    """Raised for a duplicate, instead of calling the handler; counted where it is found."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OutcomeRules:
    """The group's settings for what becomes of records.

    `listed` are the topics of `handler.outputs`. `policies` returns those of now, None where there is no policy: then
    nothing has an attempt left. Without `error_text`, an error's text and the calls that led to it stay out of logs and
    headers.
    """

    group_id: str
    listed: frozenset[str]
    failed_topic: str
    policies: Callable[[], Policies | None]
    error_text: bool = True


class Outcomes:
    """Turns what handlers answer and raise into writes and counts. Used by the consume loop's thread only.

    `retell` gives the record as its handler knows it from the record as it was read.
    """

    def __init__(
        self,
        rules: OutcomeRules,
        outbox: Outbox,
        retell: Callable[[Record], Record],
        *,
        pacing: Pacing,
        stats: Stats,
        clock: Clock,
    ) -> None:
        self._rules = rules
        self._outbox = outbox
        self._retell = retell
        self._pacing = pacing
        self._stats = stats
        self._clock = clock
        self._pid = os.getpid()
        self._budget = LineBudget()
        # Where errors were raised, and when each place was last shown with its calls.
        self._shown_at: dict[str, float] = {}

    def decoding(self, handle: Handle, decode_key: Decoder | None, decode_value: Decoder | None) -> Handle:
        """`handle` with decoding in front of it; `handle` itself when there is nothing to decode.

        Decoding replaces key and value in the record, which is the handler's own.
        """
        if decode_key is None and decode_value is None:
            return handle

        def decode_and_handle(record: Record) -> Any:
            if decode_key is not None and record.key is not None:
                record.key = decode_key(record.key)
            if decode_value is not None and record.value is not None:
                record.value = decode_value(record.value)
            return handle(record)

        return decode_and_handle

    def outputs_of(self, answer: object) -> tuple[Produce, ...]:
        """The outputs in what a handler returned. Raises what makes it unusable, which is then the record's failure."""
        produces = ANY_OUTPUT.of(answer)
        end_forked_child(self._pid)
        return produces

    def answered(self, partition: PartitionProgress, record: Record, produces: Sequence[Produce]) -> None:
        """Begin to write a record's outputs: it counts once they are acknowledged."""
        self._begin(partition, as_read(record), DONE, self._write_all(produces))

    def raised(self, partition: PartitionProgress, record: Record, error: BaseException) -> bool:
        """Send the record on, to a retry topic or the failed one, or drop it, as its error and the policy ask for.

        False when it has to stay at its place: the pacing says so. Count the successes before it first.
        """
        end_forked_child(self._pid, error)
        if isinstance(error, PassedOver):
            return True
        read = as_read(record)
        shown = self._retell(read)
        way = self._way(shown, error)
        if way is None:
            return False
        if isinstance(way, Drop):
            self._stats.dropped += 1
            return True
        write = self._send_on(shown, way, error)
        self._begin(partition, read, _result(way), [write])
        return True

    def conclude(self, unfinished: Unfinished, result: Result) -> bool:
        """A record that stood in `unfinished` since it was taken up has come back from its handler elsewhere.

        What came back is checked already, so nothing here can fail. False when the record has to stay, as in `raised`.
        """
        if result.error is not None:
            shown = self._retell(unfinished.record)
            way = self._way(shown, result.error)
            if way is None:
                return False
            unfinished.result = _result(way)
            if not isinstance(way, Drop):
                unfinished.writes = [self._send_on(shown, way, result.error)]
        else:
            self._pacing.succeeded(1)
            unfinished.result = DONE
            unfinished.writes = self._write_all(result.produces)
        unfinished.handled, unfinished.handled_at = True, self._clock.monotonic()
        return True

    def refused(self, unfinished: Unfinished, write: Outgoing) -> None:
        """Replace a write that its topic will never take: an output by its record's failure; a record that goes on by
        one with fewer headers, then by one in the failed topic. One that is refused even there stays, and its
        partition is held."""
        if unfinished.result == DONE:
            error_class, error = "OutputRefused", f"an output was refused by its topic: {write.error}"
        elif len(smaller := without_details(write.headers)) < len(write.headers):
            write.headers = smaller
            self._outbox.send(write)
            return
        elif unfinished.result == RETRIED:
            error_class, error = "HopRefused", f"its retry topic does not take the record: {write.error}"
        else:
            return
        shown = self._retell(unfinished.record)
        way = self._routed(shown, Failure(FailureReason.FATAL, error_class, cut(error)), self._policy_of(shown))
        assert not isinstance(way, Drop), "a failure is never dropped"
        unfinished.result = _result(way)
        unfinished.writes = [self._send_on(shown, way)]

    def _write_all(self, produces: Sequence[Produce]) -> list[Outgoing]:
        writes = self._outbox.write_all(produces, self._rules.listed)
        self._stats.produced += sum(write.withheld is None for write in writes)
        return writes

    def _begin(self, partition: PartitionProgress, read: Record, result: str, writes: list[Outgoing]) -> None:
        now, size = self._clock.monotonic(), sum(write.size for write in writes)
        partition.begin(Unfinished(read, result, writes, handled_at=now, size=size))

    def _way(self, shown: Record, error: BaseException) -> Hop | ToFailed | Drop | None:
        """The record's way on; None when it stays."""
        policy = self._policy_of(shown)
        verdict = classify(error, policy)
        if is_endpoints(error) and not isinstance(verdict, Drop) and not verdict.failure.rule:
            return None  # no rule says that it is the record's
        if isinstance(verdict, Retry):
            course = self._pacing.failed()
            if course is Course.STAY:
                return None
            if course is Course.FAIL:
                verdict = dataclasses.replace(verdict.failure, reason=FailureReason.BREAKER)
        if not self._rules.error_text:
            verdict = without_words(verdict)
        if isinstance(verdict, Drop):
            self._log("record dropped", shown, reason="skip", error=verdict.message)
        return self._routed(shown, verdict, policy)

    def _policy_of(self, shown: Record) -> Policy | None:
        policies = self._rules.policies()
        if policies is None:
            return None
        policy, known = policies.of(story_of(shown).policy)
        self._stats.unknown_policies += not known
        return policy

    def _routed(self, shown: Record, verdict: Retry | Failure | Drop, policy: Policy | None) -> Hop | ToFailed | Drop:
        now_ms = int(self._clock.wall() * 1000)
        return route(shown, verdict, policy, group_id=self._rules.group_id, now_ms=now_ms)

    def _send_on(self, shown: Record, way: Hop | ToFailed, error: BaseException | None = None) -> Outgoing:
        """Begin to write a record's copy, with its bytes as they were read."""
        failure, key = way.failure, shown.key
        what = {"errorClass": failure.error_class, "error": failure.message}
        if isinstance(way, Hop):
            delay = canonical_delay(way.delay_s)
            self._stats.hopped(delay)
            topic = way.topic
            self._log("record will be tried again", shown, delay=delay, **what, **self._calls(failure, error))
        else:
            self._stats.gave_up(failure.reason.value, failure.error_class)
            topic = self._rules.failed_topic
            self._log("record failed", shown, reason=failure.reason.value, **what, **self._calls(failure, error))
        if failure.reason is FailureReason.TIMEOUT:
            self._stats.timeouts += 1
        if failure.reason is FailureReason.SKIPPED:
            self._stats.passed_by(place_of(shown), PassedBy(self._clock.wall()))
        policies = self._rules.policies()
        partition = None if policies is None else partition_of(key, story_of(shown).origin, policies.partitions)
        return self._outbox.send(Outgoing(topic, key, shown.value, way.headers, partition))

    def _calls(self, failure: Failure, error: BaseException | None) -> dict[str, str]:
        """The traceback, for the log: once a minute for each place in the code. One place may fail a topic."""
        if error is None or not failure.stack:
            return {}
        now = self._clock.monotonic()
        if now - self._shown_at.get(failure.place, float("-inf")) < TRACEBACK_EVERY_S:
            return {}
        if len(self._shown_at) >= PLACES_MAX:
            self._shown_at.clear()
        self._shown_at[failure.place] = now
        return {"exception": traceback_of(error)[-MESSAGE_CHARACTERS_MAX:]}

    def _log(self, message: str, record: Record, **values: object) -> None:
        allowed, left_out = self._budget.spend(self._clock.monotonic())
        allowed = allowed or "exception" in values
        if left_out:
            LOG.warning("log lines about single records were left out", extra=fields(count=left_out))
        if allowed:
            LOG.warning(message, extra=fields(**about(record), **values))


def _result(way: Hop | ToFailed | Drop) -> str:
    return RETRIED if isinstance(way, Hop) else FAILED if isinstance(way, ToFailed) else DROPPED
