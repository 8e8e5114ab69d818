"""Classification of handler errors: retry, failed topic, or drop. Main workers, retry workers and Backfills share this
classification.

Order of precedence: the handler's own decision, the policy's rules in order, a default by kind of error. Without a
policy, retriable errors go to the failed topic.
"""

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
"""Maximum length of an error's text in a header, in bytes; small compared with any topic's `max.message.bytes`."""

STACK_BYTES_MAX: Final = 2048
"""Maximum length of an error's stack in a header, in bytes. The innermost calls are kept."""

OWN_FOLDER: Final = str(Path(__file__).parents[1])
"""Folder of our own code. Stacks omit the frames of our own code, because they are the same for every handler."""

RULE_BYTES_MAX: Final = 256
"""Maximum length of a rule's name in a header, in bytes. The name may be a long regular expression."""

RETRY_AFTER_MAX_S: Final = 10.0**9
"""Maximum delay in seconds that a handler may request, about thirty years. Longer and infinite delays are clamped."""


@dataclass(frozen=True, slots=True)
class Failure:
    """A record's failure, for the failed topic.

    `error_class` includes the module name, except for builtins. `rule` is the name of the policy's matching rule, or
    empty. `stack` has the calls that led to the error, innermost last.
    """

    reason: FailureReason
    error_class: str
    message: str
    rule: str = ""
    stack: str = field(default="", compare=False)

    @property
    def failure(self) -> "Failure":
        """Returns this failure; the property exists in `Retry` and in `Failure`."""
        return self

    @property
    def place(self) -> str:
        """The innermost call of `stack`; empty if unknown."""
        return self.stack.rpartition("\n")[2]


@dataclass(frozen=True, slots=True)
class Retry:
    """The decision to retry a record; if no attempt is left, it fails with `failure`.

    `after_s` is the shortest delay in seconds that the application accepts; if it is None, the policy decides.
    """

    after_s: float | None
    failure: Failure


@dataclass(frozen=True, slots=True)
class Drop:
    """The decision of the handler or a rule to drop a record. The record is counted, but not written to any topic."""

    message: str


class Undecodable(Exception):
    """A record's bytes are not in the format of `handler.decode`. The message omits the bytes, because they may be
    personal data; the failed record keeps them."""

    def __init__(self, field: str, format_name: str, seen: str) -> None:
        super().__init__(
            f"the {field} is not {format_name}: {seen}; correct the sender, or set `handler.decode.{field}`"
        )


class OutputRefused(Exception):
    """The handler returned a result that cannot be written. A retry would not help, so the record fails."""


class OutputNotListed(OutputRefused):
    """The handler returned an output for a topic that is not in `handler.outputs`."""


class TimedOut(Exception):
    """The handler's timeout ended its call. The record fails as `Timeout`, even if a result followed."""


class Poison(Exception):
    """The record is not given to the handler again, because processes died repeatedly while they handled it."""


class Skipped(Exception):
    """A record named by `spec.offsets.skip`; the handler does not get it."""


class HttpStatus(Exception):
    """A status other than 2xx from an HTTP handler. 5xx and 429 are retriable, all others final. `endpoint` is true if
    the status points to a misconfigured handler, not to the record."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.endpoint = False

    @property
    def final(self) -> bool:
        return self.status < 500 and self.status != 429


class NotHttp(Exception):
    """The response on an HTTP handler's port is not HTTP, and the handler has never returned 2xx. Another program
    probably listens on this port."""


STABLE_NAMES: Final[Mapping[type[BaseException], str]] = {
    TimedOut: "Timeout",
    Poison: "Poison",
    Skipped: "Skipped",
    HttpStatus: "HttpStatus",
}
"""Names of our own exception classes in rules, headers and logs. The text of an HttpStatus begins with the status."""

OWN_REASONS: Final[Mapping[type[BaseException], FailureReason]] = {
    TimedOut: FailureReason.TIMEOUT,
    Undecodable: FailureReason.UNDECODABLE,
    Poison: FailureReason.POISON,
    Skipped: FailureReason.SKIPPED,
}


def classify(error: BaseException, policy: Policy | None = None) -> Retry | Failure | Drop:
    """Decide about a record whose handler raised `error`: retry, failed topic or drop. Never raises. Without a policy
    the result is never `Retry`."""
    if isinstance(error, Skip):
        return Drop(error_text(error))
    if isinstance(error, Skipped):
        return _failure(error, FailureReason.SKIPPED)  # the spec takes precedence over the policy's rules
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
        return _failure(error, FailureReason.POISON)  # not retried, because each attempt has killed a worker
    return Retry(None, _exhausted(error))


def is_endpoints(error: BaseException) -> bool:
    """Return True if the error points to a misconfigured handler, so that no record fails because of it."""
    return isinstance(error, NotHttp) or (isinstance(error, HttpStatus) and error.endpoint)


def _decided(error: BaseException, then: Then, rule: str) -> Retry | Failure | Drop:
    exhausted = _exhausted(error, rule)
    if then is Then.RETRY:
        return Retry(None, exhausted)
    if then is Then.DROP:
        return Drop(cut(f"{rule}: {exhausted.message}"))
    # Reasons other than `exhausted` are kept, because users search for them.
    return replace(exhausted, reason=FailureReason.FATAL) if exhausted.reason is FailureReason.EXHAUSTED else exhausted


def _exhausted(error: BaseException, rule: str = "") -> Failure:
    return _failure(error, _of_class(OWN_REASONS, type(error)) or FailureReason.EXHAUSTED, rule)


def _failure(error: BaseException, reason: FailureReason, rule: str = "") -> Failure:
    # After `raise RetryAfter(5) from error`, report `error`.
    cause = error.__cause__ if isinstance(error, RetryAfter) and error.__cause__ is not None else error
    kind = type(cause)
    name = _of_class(STABLE_NAMES, kind) or class_name(kind)
    return Failure(reason, name, error_text(cause), rule, stack_of(cause))


def _of_class(table: Mapping[type[BaseException], T], kind: type[BaseException]) -> T | None:
    """Return the entry for a class or, because applications may subclass our errors, for its nearest base class that
    has an entry."""
    return next((table[base] for base in kind.__mro__ if base in table), None)


def _matches(rule: Rule, error: BaseException, text: str) -> bool:
    if rule.exception is not None:
        return any(rule.exception in names for names in map(_names, type(error).__mro__))
    if rule.http_status is not None:
        return isinstance(error, HttpStatus) and rule.http_status in (str(error.status), f"{error.status // 100}xx")
    return rule.message is not None and rule.message.found_in(text)


def _names(kind: type) -> tuple[str, ...]:
    """Return the names by which a rule may refer to a class, unqualified and qualified."""
    own = STABLE_NAMES.get(kind, kind.__name__)
    return (own, kind.__name__, kind.__qualname__, f"{kind.__module__}.{kind.__qualname__}")


def _seconds(wanted: object) -> float | None:
    """Return the delay of RetryAfter, clamped; None if it is not a number, so that the policy decides."""
    if isinstance(wanted, bool) or not isinstance(wanted, int | float) or wanted != wanted:  # NaN
        return None
    # Clamped before the conversion, because an int may be too large for a float.
    return float(max(0, min(wanted, RETRY_AFTER_MAX_S)))


def class_name(kind: type[BaseException]) -> str:
    """Return the class's qualified name: `ValueError` for a builtin, `shop.orders.OutOfStock` for others."""
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def error_text(error: BaseException) -> str:
    """Return the error's text, cut to MESSAGE_BYTES_MAX. Never raises."""
    try:
        text = str(error)
    except Exception as broken:  # a user's __str__ may raise any exception
        text = f"(no text: {type(broken).__name__} in __str__)"
    return cut(text)


def stack_of(error: BaseException) -> str:
    """Return the application's calls down to the line that raised the error, one call per line. Source lines are left
    out, because they may contain data."""
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
    """Return the part of the traceback that begins with the application's first call, without the worker's own calls
    before it."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename.startswith(OWN_FOLDER):
        trace = trace.tb_next
    return "".join(traceback.format_exception(type(error), error, trace or error.__traceback__)).rstrip("\n")


def without_words(verdict: Retry | Failure | Drop) -> Retry | Failure | Drop:
    """Return the verdict without the error's text and stack, but with the error's class and the rule."""
    if isinstance(verdict, Drop):
        return Drop("")
    failure = replace(verdict.failure, message="", stack="")
    return replace(verdict, failure=failure) if isinstance(verdict, Retry) else failure


def cut(text: str, limit: int = MESSAGE_BYTES_MAX) -> str:
    """Return `text` in at most `limit` bytes of UTF-8, cut between characters. Lone surrogates are escaped."""
    raw = text.encode("utf-8", "backslashreplace")
    return raw.decode() if len(raw) <= limit else raw[:limit].decode("utf-8", "ignore")
