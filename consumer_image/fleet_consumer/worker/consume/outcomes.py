"""Outcome of one record (done, retried later, failed or dropped), and the writes that the outcome requires.

The methods start writes without waiting for acknowledgements; `writing` completes the writes. A failed record is
forwarded as it was read, without changes by the handler. For a record of a retry topic, the record with the origin's
coordinates is built again from the record that was read.
"""

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
from fleet_consumer.retry.routing import ToFailed, ToRetry, history_of, partition_of, route
from fleet_consumer.worker.breaker.pacing import FailureAction, Pacing
from fleet_consumer.worker.consume.outbox import Outbox, Outgoing
from fleet_consumer.worker.consume.progress import PartitionProgress, Unfinished
from fleet_consumer.worker.logs import MESSAGE_CHARACTERS_MAX, LineBudget, about, fields, place_of
from fleet_consumer.worker.stats import DONE, DROPPED, FAILED, RETRIED, Stats

LOG = logging.getLogger("fleet_consumer.worker")

TRACEBACK_EVERY_S: Final = 60.0
"""Minimum interval in seconds between two logged tracebacks of errors from the same code location."""
PLACES_MAX: Final = 1_000
"""Maximum number of code locations whose last logged traceback is remembered."""

ANY_OUTPUT: Final = Outputs()

Handle = Callable[[Record], Any]


class PassedOver(Exception):
    """Raised for a duplicate, for which the handler is not called. The duplicate is already counted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OutcomeRules:
    """The group's settings for outcomes.

    `listed` are the topics of `handler.outputs`. `policies` returns the current policies, or None without a retry
    policy. If `error_text` is false, logs and headers contain no error messages and tracebacks.
    """

    group_id: str
    listed: frozenset[str]
    failed_topic: str
    policies: Callable[[], Policies | None]
    error_text: bool = True


class Outcomes:
    """Turns results and errors of handlers into writes and counts. Used by the consume loop's thread only.

    `present_again` builds the record for the handler again, from the record that was read.
    """

    def __init__(
        self,
        rules: OutcomeRules,
        outbox: Outbox,
        present_again: Callable[[Record], Record],
        *,
        pacing: Pacing,
        stats: Stats,
        clock: Clock,
    ) -> None:
        self._rules = rules
        self._outbox = outbox
        self._present_again = present_again
        self._pacing = pacing
        self._stats = stats
        self._clock = clock
        self._pid = os.getpid()
        self._budget = LineBudget()
        # Time of the last logged traceback (monotonic seconds) by the code location that raised the error.
        self._shown_at: dict[str, float] = {}

    def decoding(self, handle: Handle, decode_key: Decoder | None, decode_value: Decoder | None) -> Handle:
        """Wrap `handle` in a function that first decodes the record. Returns `handle` if there are no decoders."""
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
        """Return the outputs in a handler's result. Raises an error if the result is invalid; the record then fails."""
        produces = ANY_OUTPUT.records_in(answer)
        end_forked_child(self._pid)
        return produces

    def answered(self, partition: PartitionProgress, record: Record, produces: Sequence[Produce]) -> None:
        """Start to write a record's outputs. The record is done once all outputs are acknowledged."""
        self._begin(partition, as_read(record), DONE, self._write_all(produces))

    def raised(self, partition: PartitionProgress, record: Record, error: BaseException) -> bool:
        """Send a failed record to a retry topic or the failed topic, or drop it, depending on the error and the policy.

        Returns False if the record must be handled again at its place in the partition, because of the breaker or a
        misconfigured handler. Successes of earlier records must be counted before this call.
        """
        end_forked_child(self._pid, error)
        if isinstance(error, PassedOver):
            return True
        read = as_read(record)
        shown = self._present_again(read)
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
        """Apply the validated result of an executor's call to the record's entry in `unfinished`. Returns False if the
        record must be handled again, as in `raised`."""
        if result.error is not None:
            shown = self._present_again(unfinished.record)
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
        """Replace a write that its topic refuses permanently.

        If an output is refused, the consumed record fails. A refused copy for a retry topic or the failed topic is sent
        again with fewer headers. If a retry topic also refuses the smaller copy, the record goes to the failed topic.
        If the failed topic refuses the smaller copy, the partition stays held.
        """
        if unfinished.result == DONE:
            error_class, error = "OutputRefused", f"an output was refused by its topic: {write.error}"
        elif len(smaller := without_details(write.headers)) < len(write.headers):
            write.headers = smaller
            self._outbox.send(write)
            return
        elif unfinished.result == RETRIED:
            error_class, error = "RetryTopicRefused", f"the retry topic refused the record: {write.error}"
        else:
            return
        shown = self._present_again(unfinished.record)
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
        partition.add_unfinished(Unfinished(read, result, writes, handled_at=now, size=size))

    def _way(self, shown: Record, error: BaseException) -> ToRetry | ToFailed | Drop | None:
        """Return the failed record's destination; None if it must be handled again at its place in the partition."""
        policy = self._policy_of(shown)
        verdict = classify(error, policy)
        if is_endpoints(error) and not isinstance(verdict, Drop) and not verdict.failure.rule:
            return None  # the handler is misconfigured, and no rule of the policy matches this error
        if isinstance(verdict, Retry):
            action = self._pacing.failed()
            if action is FailureAction.STAY:
                return None
            if action is FailureAction.FAIL:
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
        policy, known = policies.find_revision(history_of(shown).policy)
        self._stats.unknown_policies += not known
        return policy

    def _routed(
        self, shown: Record, verdict: Retry | Failure | Drop, policy: Policy | None
    ) -> ToRetry | ToFailed | Drop:
        now_ms = int(self._clock.wall() * 1000)
        return route(shown, verdict, policy, group_id=self._rules.group_id, now_ms=now_ms)

    def _send_on(self, shown: Record, way: ToRetry | ToFailed, error: BaseException | None = None) -> Outgoing:
        """Start to write a copy of the record, with the key and value that were read."""
        failure, key = way.failure, shown.key
        what = {"errorClass": failure.error_class, "error": failure.message}
        if isinstance(way, ToRetry):
            delay = canonical_delay(way.delay_s)
            self._stats.retry_publishes[delay] += 1
            topic = way.topic
            self._log("record will be retried", shown, delay=delay, **what, **self._calls(failure, error))
        else:
            self._stats.gave_up(failure.reason.value, failure.error_class)
            topic = self._rules.failed_topic
            self._log("record failed", shown, reason=failure.reason.value, **what, **self._calls(failure, error))
        if failure.reason is FailureReason.TIMEOUT:
            self._stats.timeouts += 1
        if failure.reason is FailureReason.SKIPPED:
            self._stats.passed_by(place_of(shown), PassedBy(self._clock.wall()))
        policies = self._rules.policies()
        partition = None if policies is None else partition_of(key, history_of(shown).origin, policies.partitions)
        return self._outbox.send(Outgoing(topic, key, shown.value, way.headers, partition))

    def _calls(self, failure: Failure, error: BaseException | None) -> dict[str, str]:
        """Return the traceback for the log, at most once a minute for each code location, because all records may fail
        at the same location."""
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
            LOG.warning("suppressed log lines about single records", extra=fields(count=left_out))
        if allowed:
            LOG.warning(message, extra=fields(**about(record), **values))


def _result(way: ToRetry | ToFailed | Drop) -> str:
    return RETRIED if isinstance(way, ToRetry) else FAILED if isinstance(way, ToFailed) else DROPPED
