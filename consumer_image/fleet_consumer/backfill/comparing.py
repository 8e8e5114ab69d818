"""Comparison of two handlers' answers to one record, as what would be written or as the failure. Pure.

An answer is a JSON document, so that it can be stored by one pass and compared by another: `{"outputs": [...]}`,
`{"dropped": ...}` or `{"error": {...}}`. Bytes are text where they are UTF-8, else an object with base64.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any, Final

from fleet_consumer.backfill.rows import DIFFERENCE_COLUMNS, Row, batch_of
from fleet_consumer.backfill.slices import TaskReport
from fleet_consumer.contract.backfill_ledger import SAMPLE_TEXT_MAX, Sample
from fleet_consumer.contract.policies import Policy
from fleet_consumer.handlers.performing import Result
from fleet_consumer.record import Produce
from fleet_consumer.retry.failure import Drop, Retry, classify, without_words

EQUAL: Final = "equal"
DIFFERENT: Final = "different"
FAILED_LIVE_ONLY: Final = "failed_live_only"
FAILED_CANDIDATE_ONLY: Final = "failed_candidate_only"
"""Verdicts: the fields of `Comparison`."""

Answer = Mapping[str, Any]


def answer_of(result: Result, policy: Policy | None, *, error_text: bool = True) -> Answer:
    """The document of a handler's result. `error_text` False leaves the words of errors out."""
    if result.error is None:
        return {"outputs": [_output(each) for each in result.produces]}
    verdict = classify(result.error, policy)
    if not error_text:
        verdict = without_words(verdict)
    if isinstance(verdict, Drop):
        return {"dropped": verdict.message}
    failure = verdict.failure
    kind = "Retry" if isinstance(verdict, Retry) else failure.reason.value.capitalize()
    return {"error": {"class": failure.error_class, "kind": kind, "message": failure.message}}


def compare(live: Answer, candidate: Answer, ignored: Collection[str]) -> str:
    """The verdict. Texts of errors and of drops do not count, nor do `ignored` fields of values that are JSON
    objects."""
    if ("error" in live) != ("error" in candidate):
        return FAILED_LIVE_ONLY if "error" in live else FAILED_CANDIDATE_ONLY
    if "error" in live:
        one, other = live["error"], candidate["error"]
        return EQUAL if (one["class"], one["kind"]) == (other["class"], other["kind"]) else DIFFERENT
    if ("dropped" in live) or ("dropped" in candidate):
        return EQUAL if "dropped" in live and "dropped" in candidate else DIFFERENT
    ours, theirs = live["outputs"], candidate["outputs"]
    same = len(ours) == len(theirs) and all(
        _same_output(one, other, ignored) for one, other in zip(ours, theirs, strict=True)
    )
    return EQUAL if same else DIFFERENT


def result_text(answer: Answer | None) -> str | None:
    """The side's result for people and tools: JSON, None if it failed."""
    return None if answer is None or "error" in answer else dumped(answer)


def error_text(answer: Answer | None) -> str | None:
    """The side's error as one line, None if it did not fail."""
    if answer is None or "error" not in answer:
        return None
    error = answer["error"]
    return f"{error['kind']}: {error['class']}: {error['message']}".removesuffix(": ")


def sample_text(answer: Answer | None) -> str:
    """One side of a sample, cut."""
    text = error_text(answer) or result_text(answer) or "no record"
    return text if len(text) <= SAMPLE_TEXT_MAX else text[: SAMPLE_TEXT_MAX - 1] + "…"


def dumped(answer: Answer) -> str:
    """The document as it is stored."""
    return json.dumps(answer, ensure_ascii=False, separators=(",", ":"), sort_keys=True)


def _output(produce: Produce) -> dict[str, Any]:
    return {
        "topic": produce.topic,
        "key": _text(produce.key),
        "value": _text(produce.value),
        "headers": [[name, _text(value)] for name, value in produce.headers],
    }


def _text(value: bytes | str | None) -> Any:
    if value is None or isinstance(value, str):
        return value
    try:
        return value.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(value).decode()}


def _same_output(one: Answer, other: Answer, ignored: Collection[str]) -> bool:
    if any(one[name] != other[name] for name in ("topic", "key", "headers")):
        return False
    if one["value"] == other["value"]:
        return True
    ours, theirs = _object(one["value"], ignored), _object(other["value"], ignored)
    return ours is not None and ours == theirs


def _object(text: Any, ignored: Collection[str]) -> str | None:
    """A JSON object without these fields, its names in order; None for anything else.

    As text, since to Python `true` equals 1, and NaN is not itself.
    """
    if not isinstance(text, str):
        return None
    try:
        value = json.loads(text)
        if not isinstance(value, dict):
            return None
        return json.dumps({name: each for name, each in value.items() if name not in ignored}, sort_keys=True)
    except (ValueError, RecursionError):
        return None


def joined_function(topic: str, ignored: Collection[str], reports: Any) -> Callable[[Iterable[Any]], Iterator[Any]]:
    """The function for `mapInArrow` over the joined answers; `reports` is the driver's accumulator."""

    def run(batches: Iterable[Any]) -> Iterator[Any]:
        from pyspark import TaskContext

        context = TaskContext.get()
        report = TaskReport()
        for batch in batches:
            rows: list[Row] = []
            for each in batch.to_pylist():
                place = (topic, each["partition"], each["offset"], each["timestamp"], each["key"])
                live, candidate = (each[side] and json.loads(each[side]) for side in ("live", "candidate"))
                rows += judged(place, live, candidate, ignored, report)
            if rows:
                yield batch_of(DIFFERENCE_COLUMNS, rows)
        reports.add({("join", context.partitionId() if context is not None else 0): report})

    return run


def judged(
    place: Row, live: Answer | None, candidate: Answer | None, ignored: Collection[str], report: TaskReport
) -> list[Row]:
    """Compare the answers to the record at `place`, its coordinates and key; the row of a difference. A record that one
    pass did not have differs."""
    verdict = DIFFERENT if live is None or candidate is None else compare(live, candidate, ignored)
    if verdict == EQUAL:
        report.note(EQUAL, None)
        return []
    _, partition, offset, *_ = place
    sample = Sample(partition=partition, offset=offset, live=sample_text(live), candidate=sample_text(candidate))
    report.note(verdict, sample)
    return [(*place, result_text(live), result_text(candidate), error_text(live), error_text(candidate))]
