"""Processes the outcomes of records in a handler's process: writes outputs to the sink, applies `onError`, and makes
rows for the task.

A request is handled in parts. A part ends when its writes are acknowledged; then its coverage, counts and rows are sent
to the task together. If the process dies within a part, the part is lost, except for records that were already written
to topics.
"""

import logging
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Final

from fleet_consumer.backfill.calling import Answer
from fleet_consumer.backfill.columns import TableRows
from fleet_consumer.backfill.comparing import answer_of, dumped
from fleet_consumer.backfill.rows import Rows, encoded_headers
from fleet_consumer.backfill.slices import FailedRecord, TaskReport
from fleet_consumer.backfill.work import Work, policies_of
from fleet_consumer.backfill.writing import FailedTopic, SinkTopic, Writers
from fleet_consumer.contract.backfill_config import BackfillConfig
from fleet_consumer.librdkafka.fetched import as_read
from fleet_consumer.record import Produce, Record
from fleet_consumer.retry.failure import Drop, OutputNotListed, OutputRefused, Poison, classify, without_words
from fleet_consumer.worker.logs import fields

LOG = logging.getLogger("fleet_consumer.backfill")

LINES_MAX: Final = 20
"""Maximum number of log lines about single records per request, so that a topic full of bad records cannot fill the
disk."""


class Outcomes(ABC):
    """Outcomes of the records of one request. `report` and `rows` belong to the current part. `ended` is True after a
    record has ended the task."""

    def __init__(self, config: BackfillConfig, work: Work) -> None:
        self._config = config
        self._policies = policies_of(work.policies)
        self._policy = None if self._policies is None else self._policies.newest
        self.report = TaskReport()
        self.rows: Rows = Rows()
        self.ended = False

    def ends(self, error: BaseException) -> bool:
        return False

    @abstractmethod
    def add(self, records: Sequence[Record], answers: Sequence[Answer]) -> int:
        """Process the answers to the first records of this list. Returns the number of finished records.

        With concurrent calls, records after the record that ends the task may already be handled. They will be handled
        again.
        """

    def await_writes(self) -> bool:
        """Wait for the part's writes. Returns False if the part must be discarded because of a refused write."""
        return True


class Handled(Outcomes):
    """Outcomes of the group's own handler: writes outputs to the sink, and applies `onError` to failures."""

    def __init__(self, config: BackfillConfig, work: Work, writers: Writers) -> None:
        super().__init__(config, work)
        topic = config.sink.topic
        self._sink = None if topic is None else SinkTopic(config, writers.writer_to(topic, work.limits.get(topic)))
        self._writers, self._work = writers, work
        self._failed: FailedTopic | None = None
        self._lines = 0
        table = config.sink.table
        self._typed = None if table is None or table.columns is None else TableRows(table.columns)

    def ends(self, error: BaseException) -> bool:
        # An output to an unlisted topic ends the run, because this mistake in the settings fails every record.
        if self._config.on_error != "Fail" and not isinstance(error, OutputNotListed):
            return False
        return not isinstance(classify(error, self._policy), Drop)

    def add(self, records: Sequence[Record], answers: Sequence[Answer]) -> int:
        report, sink, keeps = self.report, self._sink, self._config.sink.folder is not None
        done = outputs = others = 0
        for record, given in zip(records, answers, strict=False):
            answer = given
            if keeps and isinstance(answer, tuple) and answer:
                answer = self._kept(as_read(record), answer)
            if isinstance(answer, tuple):
                done += 1
                if answer:
                    outputs += len(answer)
                    if sink is not None:
                        sink.send(as_read(record), answer)
            else:
                self._judge(as_read(record), answer)
                if self.ended:
                    break
                others += 1
        report.records_in += done
        report.records_out += outputs
        if self._config.dry_run:
            handled = map(as_read, records[: done + others])
            report.bytes_in += sum(len(each.key or b"") + len(each.value or b"") for each in handled)
        return done + others

    def await_writes(self) -> bool:
        for record, count, error in [] if self._sink is None else self._sink.await_writes():
            refusal = OutputRefused(f"the sink's topic refuses an output: {error}")
            if self.ends(refusal):
                # Later records were handled before the refusal arrived, so the whole part is discarded and repeated.
                self.report = TaskReport(waited=self.report.waited)
                self._judge(record, refusal)
                return False
            self.report.records_in -= 1
            self.report.records_out -= count
            self._judge(record, refusal)
        if self._failed is not None:
            self._failed.await_writes()
        return True

    def _kept(self, record: Record, produces: tuple[Produce, ...]) -> Answer:
        """Store all outputs of a record as rows, and return the outputs. If any output does not match the columns,
        store no row and return the error."""
        topic, typed = self._config.topic, self._typed
        place = (topic, record.partition, record.offset, record.timestamp)
        rows: list[Sequence[Any]]
        if typed is None:
            made = (
                (each.topic, _bytes(each.key), _bytes(each.value), encoded_headers(each.headers)) for each in produces
            )
            rows = [(*place, number, *each) for number, each in enumerate(made)]
        else:
            try:
                rows = [typed.row(topic, record, each) for each in produces]
            except OutputRefused as error:
                return error
        for row in rows:
            self.rows.add(*row)
        return produces

    def _judge(self, record: Record, error: BaseException) -> None:
        report, config = self.report, self._config
        verdict = classify(error, self._policy)
        if not config.worker.handler.error_text:
            verdict = without_words(verdict)
        if isinstance(verdict, Drop):
            report.dropped += 1
            self._log("record dropped", record, error=verdict.message)
            return
        failure = verdict.failure
        self._log("record failed", record, errorClass=failure.error_class, error=failure.message)
        if self.ends(error):
            # The record is neither covered nor counted, so the next attempt begins with it.
            self.ended = True
            stopped = FailedRecord(record.partition, record.offset, failure.error_class, failure.message)
            report.failures.append(stopped)
            return
        report.records_in += 1
        report.failed += 1
        report.poison += isinstance(error, Poison)
        if config.on_error == "FailedTopic":
            if self._failed is None:
                topic = config.worker.failed_topic
                known = self._work.limits.get(topic) if self._policies is None else self._policies.max_message_bytes
                self._failed = FailedTopic(config, self._policies, self._writers.writer_to(topic, known))
            self._failed.send(record, failure)

    def _log(self, text: str, record: Record, **values: object) -> None:
        self._lines += 1
        if self._lines <= LINES_MAX:
            where = {"topic": self._config.topic, "partition": record.partition, "offset": record.offset}
            LOG.warning(text, extra=fields(**where, **values))


class Answered(Outcomes):
    """Outcomes of one handler in a comparison: each answer becomes a row, to be compared later."""

    def add(self, records: Sequence[Record], answers: Sequence[Answer]) -> int:
        text = self._config.worker.handler.error_text
        for record, answer in zip(records, answers, strict=False):
            read = as_read(record)
            self.report.records_in += 1
            self.report.records_out += len(answer) if isinstance(answer, tuple) else 0
            self.report.poison += isinstance(answer, Poison)
            document = dumped(answer_of(answer, self._policy, error_text=text))
            self.rows.add(self._config.topic, read.partition, read.offset, read.timestamp, read.key, document)
        return len(answers)


def _bytes(value: Any) -> bytes | None:
    return value.encode() if isinstance(value, str) else value
