"""Classification of handler errors: retry, failed topic, or drop.

There is one classifier, so that the main flow, retries and redrives cannot judge the same error differently.
Precedence: the handler's own decision, then the policy's rules in order, then a default by kind of error. Without a
policy there are no retries: retriable errors go to the failed topic.
"""

from __future__ import annotations

import traceback
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, TypeVar

from fleet_consumer.contract.failure_reasons import FailureReason
from fleet_consumer.contract.policies import Policy, Rule, Then
from fleet_consumer.record import Fatal, RetryAfter, Skip

T = TypeVar("T")

MESSAGE_BYTES_MAX: Final = 1024
"""Limit of an error's text in a header: enough for a cause, small beside any topic's `max.message.bytes`."""

STACK_BYTES_MAX: Final = 2048
"""Limit of the stack of an error, in a header: the innermost calls."""

OWN_FOLDER: Final = str(Path(__file__).parents[1])
"""Our own frames lead to every handler, and explain nothing."""

RULE_BYTES_MAX: Final = 256
"""Limit of a rule's name in a header: a regular expression may be long."""

RETRY_AFTER_MAX_S: Final = 10.0**9
"""The longest delay, about thirty years; longer ones and infinity are clamped to it."""


@dataclass(frozen=True, slots=True)
class Failure:
    """A record for the failed topic. `error_class` is qualified by its module unless it is a builtin; `rule` is the
    name of the policy's rule that matched, or empty; `stack` are the calls that led to the error, the innermost
    last."""

    reason: FailureReason
    error_class: str
    message: str
    rule: str = ""
    stack: str = field(default="", compare=False)

    @property
    def failure(self) -> Failure:
        """This one, as a `Retry` has the one that it becomes."""
        return self

    @property
    def place(self) -> str:
        """The line of code that raised, if known."""
        return self.stack.rpartition("\n")[2]


@dataclass(frozen=True, slots=True)
class Retry:
    """A record to be retried if it has an attempt left; otherwise it becomes `failure`.

    `after_s` is the least delay that the application requests, None: as its policy says.
    """

    after_s: float | None
    failure: Failure


@dataclass(frozen=True, slots=True)
class Drop:
    """A record dropped because its handler or a rule said so; counted, never written anywhere."""

    message: str


class Undecodable(Exception):
    """A record's bytes are not in the format of `handler.decode`. They are never in the message: they may be personal
    data, and the failed record keeps them whole."""

    def __init__(self, field: str, format_name: str, seen: str) -> None:
        super().__init__(
            f"the {field} is not {format_name}: {seen}; correct the sender, or set `handler.decode.{field}`"
        )


class OutputRefused(Exception):
    """The handler returned something that may not be written. A retry cannot help, so the record fails."""


class OutputNotListed(OutputRefused):
    """The handler returned an output for a topic that is not in `handler.outputs`."""


class TimedOut(Exception):
    """The handler's timeout ended its call: the record fails as `Timeout`, whatever the handler did meanwhile."""


class Poison(Exception):
    """A record whose processes died again and again: it is not handed out any more."""


class Skipped(Exception):
    """A record that `spec.offsets.skip` names: it is passed by and not handed to its handler."""


class HttpStatus(Exception):
    """An HTTP handler's status that is no success; 5xx and 429 are retriable, all others final.

    `endpoint`: it says more of a handler that is deployed wrong than of the record.
    """

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.endpoint = False

    @property
    def final(self) -> bool:
        return self.status < 500 and self.status != 429


class NotHttp(Exception):
    """The port of an HTTP handler answers something else, and has answered nothing well: another program listens."""


STABLE_NAMES: Final[Mapping[type[BaseException], str]] = {
    TimedOut: "Timeout",
    Poison: "Poison",
    Skipped: "Skipped",
    HttpStatus: "HttpStatus",
}
"""Names of our own classes in rules, headers and logs. The text of an HttpStatus begins with the status."""

OWN_REASONS: Final[Mapping[type[BaseException], FailureReason]] = {
    TimedOut: FailureReason.TIMEOUT,
    Undecodable: FailureReason.UNDECODABLE,
    Poison: FailureReason.POISON,
    Skipped: FailureReason.SKIPPED,
}
"""Errors with a reason of their own."""


def classify(error: BaseException, policy: Policy | None = None) -> Retry | Failure | Drop:
    """Decide what happens to the record whose handler raised `error`; never raises itself.

    Without a policy the result is never `Retry`.
    """
    if isinstance(error, Skip):
        return Drop(error_text(error))
    if isinstance(error, Skipped):
        return _failure(error, FailureReason.SKIPPED)  # the spec decides, and no rule of the policy
    if isinstance(error, Fatal | OutputRefused):
        return _failure(error, FailureReason.FATAL)
    final = isinstance(error, HttpStatus) and error.final
    if policy is None:
        return _failure(error, FailureReason.FATAL) if final else _exhausted(error)
    if isinstance(error, RetryAfter):
        return Retry(_seconds(error.seconds), _exhausted(error))
    if isinstance(error, Undecodable):
        return _decided(error, policy.undecodable, "undecodable")
    text = error_text(error)
    for rule in policy.rules:
        if _matches(rule, error, text):
            return _decided(error, rule.then, cut(rule.name, RULE_BYTES_MAX))
    if final:
        return _failure(error, FailureReason.FATAL)
    if isinstance(error, Poison):
        return _failure(error, FailureReason.POISON)  # it was tried several times already, each at the cost of a worker
    return Retry(None, _exhausted(error))


def is_endpoints(error: BaseException) -> bool:
    """True if the error is that of a handler which is deployed wrong, so that no record may fail for it."""
    return isinstance(error, NotHttp) or (isinstance(error, HttpStatus) and error.endpoint)


def _decided(error: BaseException, then: Then, rule: str) -> Retry | Failure | Drop:
    exhausted = _exhausted(error, rule)
    if then is Then.RETRY:
        return Retry(None, exhausted)
    if then is Then.DROP:
        return Drop(cut(f"{rule}: {exhausted.message}"))
    # These keep their own reason, which is what users search for.
    return replace(exhausted, reason=FailureReason.FATAL) if exhausted.reason is FailureReason.EXHAUSTED else exhausted


def _exhausted(error: BaseException, rule: str = "") -> Failure:
    """The failure of a record without attempts left."""
    return _failure(error, _of_class(OWN_REASONS, type(error)) or FailureReason.EXHAUSTED, rule)


def _failure(error: BaseException, reason: FailureReason, rule: str = "") -> Failure:
    # `raise RetryAfter(5) from error`: the error is what a person wants to read about.
    cause = error.__cause__ if isinstance(error, RetryAfter) and error.__cause__ is not None else error
    kind = type(cause)
    name = _of_class(STABLE_NAMES, kind) or class_name(kind)
    return Failure(reason, name, error_text(cause), rule, stack_of(cause))


def _of_class(table: Mapping[type[BaseException], T], kind: type[BaseException]) -> T | None:
    """The entry of a class or of its nearest base: an application may derive from our errors."""
    return next((table[base] for base in kind.__mro__ if base in table), None)


def _matches(rule: Rule, error: BaseException, text: str) -> bool:
    if rule.exception is not None:
        return any(rule.exception in names for names in map(_names, type(error).__mro__))
    if rule.http_status is not None:
        return isinstance(error, HttpStatus) and rule.http_status in (str(error.status), f"{error.status // 100}xx")
    return rule.message is not None and rule.message.found_in(text)


def _names(kind: type) -> tuple[str, ...]:
    """The names by which a rule may refer to a class, bare and qualified."""
    own = STABLE_NAMES.get(kind, kind.__name__)
    return (own, kind.__name__, kind.__qualname__, f"{kind.__module__}.{kind.__qualname__}")


def _seconds(wanted: object) -> float | None:
    """The delay of RetryAfter; None, leaving it to the policy, if the handler passed no number."""
    if isinstance(wanted, bool) or not isinstance(wanted, int | float) or wanted != wanted:  # which NaN is not
        return None
    # Clamped before the conversion: an int may be too large for a float.
    return float(max(0, min(wanted, RETRY_AFTER_MAX_S)))


def class_name(kind: type[BaseException]) -> str:
    """`ValueError` for a builtin, `shop.orders.OutOfStock` for anything else."""
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def error_text(error: BaseException) -> str:
    """The error's text, cut to MESSAGE_BYTES_MAX; never raises."""
    try:
        text = str(error)
    except Exception as broken:  # a user's __str__ may raise anything
        text = f"(no text: {type(broken).__name__} in __str__)"
    return cut(text)


def stack_of(error: BaseException) -> str:
    """The application's calls down to the line that raised, one per line, without source, which may hold data."""
    calls = []
    trace = error.__traceback__
    while trace is not None:
        code = trace.tb_frame.f_code
        if not code.co_filename.startswith(OWN_FOLDER):
            calls.append(f'File "{code.co_filename}", line {trace.tb_lineno}, in {code.co_qualname}')
        trace = trace.tb_next
    text = "\n".join(calls).encode("utf-8", "backslashreplace")
    return text.decode() if len(text) <= STACK_BYTES_MAX else text[-STACK_BYTES_MAX:].decode("utf-8", "ignore")


def traceback_of(error: BaseException) -> str:
    """The traceback from the application's first call on: the worker's own calls above it say nothing of the error."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename.startswith(OWN_FOLDER):
        trace = trace.tb_next
    return "".join(traceback.format_exception(type(error), error, trace or error.__traceback__)).rstrip("\n")


def without_words(verdict: Retry | Failure | Drop) -> Retry | Failure | Drop:
    """The same without the error's text and stack; its class and the rule remain."""
    if isinstance(verdict, Drop):
        return Drop("")
    failure = replace(verdict.failure, message="", stack="")
    return replace(verdict, failure=failure) if isinstance(verdict, Retry) else failure


def cut(text: str, limit: int = MESSAGE_BYTES_MAX) -> str:
    """`text` in at most `limit` bytes of UTF-8, cut between characters; lone surrogates are escaped."""
    raw = text.encode("utf-8", "backslashreplace")
    return raw.decode() if len(raw) <= limit else raw[:limit].decode("utf-8", "ignore")
