"""A handler's answer is written only if all of it may be written."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from fleet_consumer.handlers.performing import Outputs
from fleet_consumer.record import Produce
from fleet_consumer.retry.failure import OutputRefused

ONE = Produce("done", b"1")
TWO = Produce("done", "2", key="k", headers=[("a", b"b"), ("c", None)])


def generated() -> Iterator[Produce]:
    yield ONE
    yield TWO


@pytest.mark.parametrize(
    ("answer", "expected"),
    [(None, ()), (ONE, (ONE,)), ([ONE, TWO], (ONE, TWO)), (generated(), (ONE, TWO)), ([], ())],
    ids=["nothing", "one", "a list", "a generator", "an empty list"],
)
def test_answer_of_the_contract_is_taken(answer: object, expected: tuple[Produce, ...]) -> None:
    assert Outputs(["done"]).records_in(answer) == expected


async def answer_later() -> None:
    """The answer of a handler that calls an asynchronous function and forgets to await it."""


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (
            Produce("elsewhere", b""),
            "'elsewhere' is not among the listed outputs \\(done\\); add it to `handler.outputs`",
        ),
        ([ONE, "text"], "type str among its outputs"),
        (b"bytes", "type bytes"),
        ({"topic": "done"}, "type dict"),
        (42, "type int"),
        (Produce("done", {"a": 1}), "value of an output is a value of type dict"),  # type: ignore[arg-type]
        (Produce("done", b"", key=7), "key of an output is a value of type int"),  # type: ignore[arg-type]
        (Produce("done", b"", headers=[("a", "b")]), "header"),  # type: ignore[list-item]
        (Produce("done", b"", headers=["ab"]), "header"),  # type: ignore[list-item]
        (Produce("done", "half of \ud83d"), "value of an output cannot be written as UTF-8: .* at character 8"),
        (Produce("done", b"", key="\udc80"), "key of an output cannot be written as UTF-8"),
        ([ONE, Produce("done", b"", headers=[("a", b""), ("\udc80", b"")])], "name of an output's header cannot be"),
    ],
)
def test_other_answers_are_refused_with_the_remedy(answer: object, told: str) -> None:
    with pytest.raises(OutputRefused, match=told):
        Outputs(["done"]).records_in(answer)


def test_forgotten_await_is_refused_without_a_warning() -> None:
    with pytest.raises(OutputRefused, match="coroutine"):
        Outputs(["done"]).records_in(answer_later())


def test_nothing_is_listed_means_nothing_may_be_written() -> None:
    with pytest.raises(OutputRefused, match="none are"):
        Outputs([]).records_in(ONE)


def test_generator_that_raises_fails_with_its_own_error() -> None:
    def broken() -> Iterator[Produce]:
        yield ONE
        raise KeyError("flight")

    with pytest.raises(KeyError):
        Outputs(["done"]).records_in(broken())
