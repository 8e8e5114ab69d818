"""Comparison of two handlers' answers to one record. Pure functions.

An answer is a JSON document, which one pass can store for a comparison in a later pass: `{"outputs": [...]}`,
`{"dropped": ...}` or `{"error": {...}}`. Bytes become a string if they are UTF-8, otherwise an object with base64.
"""

import base64
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from fleet_consumer.backfill.rows import Row
from fleet_consumer.backfill.slices import TaskReport
from fleet_consumer.contract.backfill_ledger import SAMPLE_TEXT_MAX, Sample
from fleet_consumer.contract.policies import Policy
from fleet_consumer.record import Produce
from fleet_consumer.retry.failure import Drop, Retry, classify, without_words

EQUAL: Final = "equal"
DIFFERENT: Final = "different"
FAILED_LIVE_ONLY: Final = "failed_live_only"
FAILED_CANDIDATE_ONLY: Final = "failed_candidate_only"
"""The verdicts; each is the name of a field of `Comparison`."""

Document = Mapping[str, Any]


def answer_of(made: tuple[Produce, ...] | BaseException, policy: Policy | None, *, error_text: bool = True) -> Document:
    """Convert a record's outputs or error to an answer; without error messages if `error_text` is False."""
    if isinstance(made, tuple):
        return {"outputs": [_output(each) for each in made]}
    verdict = classify(made, policy)
    if not error_text:
        verdict = without_words(verdict)
    if isinstance(verdict, Drop):
        return {"dropped": verdict.message}
    failure = verdict.failure
    kind = "Retry" if isinstance(verdict, Retry) else failure.reason.value.capitalize()
    return {"error": {"class": failure.error_class, "kind": kind, "message": failure.message}}


ANYWHERE: Final = "**"
ELEMENTS: Final = "[]"
"""Special steps of a path: `**` means a field at any depth, `[]` the elements of a list."""


class Ignored(NamedTuple):
    """Parts of outputs that the comparison ignores: fields of JSON values by path, and headers by name."""

    paths: tuple[tuple[str, ...], ...] = ()
    headers: frozenset[str] = frozenset()

    @classmethod
    def from_paths(cls, fields: Iterable[str], headers: Iterable[str] = ()) -> "Ignored":
        """Parse paths such as `at`, `meta.at`, `items[].at`, and `**.at` for a field at any depth."""
        paths = (each.replace(ELEMENTS, f".{ELEMENTS}").split(".") for each in fields)
        return cls(tuple(tuple(filter(None, path)) for path in paths), frozenset(headers))


def compare(live: Document, candidate: Document, ignored: Ignored) -> str:
    """Return the verdict on two answers. Error messages, drop messages and the `ignored` parts are not compared."""
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


def result_text(answer: Document | None) -> str | None:
    return None if answer is None or "error" in answer else dumped(answer)


def error_text(answer: Document | None) -> str | None:
    if answer is None or "error" not in answer:
        return None
    error = answer["error"]
    return f"{error['kind']}: {error['class']}: {error['message']}".removesuffix(": ")


def sample_text(answer: Document | None) -> str:
    text = error_text(answer) or result_text(answer) or "no record"
    return text if len(text) <= SAMPLE_TEXT_MAX else text[: SAMPLE_TEXT_MAX - 1] + "…"


def dumped(answer: Document) -> str:
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


def _same_output(one: Document, other: Document, ignored: Ignored) -> bool:
    if any(one[name] != other[name] for name in ("topic", "key")):
        return False
    ours, theirs = ([each for each in side["headers"] if each[0] not in ignored.headers] for side in (one, other))
    if ours != theirs:
        return False
    if one["value"] == other["value"]:
        return True
    value, its = _object(one["value"], ignored), _object(other["value"], ignored)
    return value is not None and value == its


def _object(text: Any, ignored: Ignored) -> str | None:
    """Return a JSON object as text without the ignored fields; None for any other value. Values are compared as text,
    because in Python `True` equals 1 and NaN differs from itself."""
    if not isinstance(text, str):
        return None
    try:
        value = json.loads(text)
        if not isinstance(value, dict):
            return None
        return json.dumps(_without(value, ignored.paths), sort_keys=True)
    except (ValueError, RecursionError):
        return None


def _without(value: Any, paths: Sequence[tuple[str, ...]]) -> Any:
    if not paths:
        return value
    if isinstance(value, list):
        below = [path[1:] for path in paths if path[0] == ELEMENTS] + [path for path in paths if path[0] == ANYWHERE]
        return [_without(each, below) for each in value]
    if not isinstance(value, dict):
        return value
    kept = {}
    for name, each in value.items():
        below = [path[1:] for path in paths if path[0] == name]
        below += [path[2:] for path in paths if path[:2] == (ANYWHERE, name)]
        if () not in below:
            kept[name] = _without(each, below + [path for path in paths if path[0] == ANYWHERE])
    return kept


def judged(place: Row, live: str | None, candidate: str | None, ignored: Ignored, report: TaskReport) -> list[Row]:
    """Compare two stored answers, and count the verdict in `report`. Returns the difference as a row, if any. `place`
    has the record's coordinates and key. A record with only one answer counts as different."""
    if live is not None and live == candidate:
        report.count_comparison(EQUAL, None)
        return []
    ours, theirs = (None if each is None else json.loads(each) for each in (live, candidate))
    verdict = DIFFERENT if ours is None or theirs is None else compare(ours, theirs, ignored)
    if verdict == EQUAL:
        report.count_comparison(EQUAL, None)
        return []
    _, partition, offset, *_ = place
    sample = Sample(partition=partition, offset=offset, live=sample_text(ours), candidate=sample_text(theirs))
    report.count_comparison(verdict, sample)
    return [(*place, result_text(ours), result_text(theirs), error_text(ours), error_text(theirs))]
