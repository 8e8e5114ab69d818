"""JSON is read and written as the standard library does it, also where the quick library refuses."""

from __future__ import annotations

import json
import math
import sys
import tracemalloc
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet_operator.app import RECURSION_LIMIT
from fleet_operator.clients import json_text
from fleet_operator.runtime.store import digest

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters()),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(st.characters(), max_size=4), inner),
    max_leaves=20,
)


@pytest.fixture
def deep_calls() -> Iterator[None]:
    """The recursion limit of the operator's process."""
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(max(before, RECURSION_LIMIT))
    yield
    sys.setrecursionlimit(before)


def nested(depth: int) -> Any:
    value: Any = "inside"
    for _ in range(depth):
        value = {"x": [value]}
    return value


@given(JSON)
def test_value_comes_back_as_it_was_written(value: Any) -> None:
    text = json_text.dumps(value)
    assert json.loads(text) == value
    back = json_text.loads(text)
    assert json.loads(json_text.dumps(back)) == back


@given(st.integers(-(2**63), 2**64 - 1))
def test_integer_of_64_bits_stays_exact(number: int) -> None:
    assert json_text.loads(json_text.dumps({"n": number})) == {"n": number}


def test_larger_integer_is_written_and_read() -> None:
    """The API server keeps no more than 64 bits of a number; what is read is near it."""
    text = json_text.dumps({"n": 2**80})
    assert json.loads(text) == {"n": 2**80}
    assert math.isclose(json_text.loads(text)["n"], 2**80)


@pytest.mark.parametrize("depth", [120, 300, 1200])
def test_nesting_that_the_api_server_stores_is_read_and_written(depth: int, deep_calls: None) -> None:
    value = nested(depth)
    assert json_text.loads(json_text.dumps(value)) == value
    assert json_text.canonical(value) == json_text.canonical(json_text.loads(json_text.dumps(value)))


def test_half_of_a_surrogate_pair_is_read_and_written() -> None:
    value = json_text.loads(b'{"a": "\\ud83d", "b": "\\ude00 \xc3\xa4"}')
    assert value == {"a": "\ud83d", "b": "\ude00 \xe4"}
    assert json_text.loads(json_text.dumps(value)) == value
    assert digest(value) != digest({**value, "a": "\ud83e"})


def test_last_of_two_equal_names_counts() -> None:
    assert json_text.loads(b'{"a": 1, "a": 2}') == {"a": 2}


@pytest.mark.parametrize("text", [b"", b"{", b"no", b"<html>", b'{"a": 1} x', b"\xff\xfe\x00", b'{"a": "\xff"}'])
def test_text_that_is_no_json_is_a_value_error(text: bytes) -> None:
    with pytest.raises(ValueError):
        json_text.loads(text)


def test_value_that_is_no_json_is_a_type_error() -> None:
    with pytest.raises(TypeError):
        json_text.dumps({"a": object()})


def test_nesting_without_end_is_a_recursion_error_or_a_value_error() -> None:
    """And never the end of the process."""
    with pytest.raises((RecursionError, ValueError)):
        json_text.loads(b"[" * 1_000_000)


def test_nan_is_never_written_as_a_number() -> None:
    """No part of JSON; the standard library would write what the API server refuses to read."""
    assert json_text.loads(json_text.dumps({"a": float("nan")})) == {"a": None}
    assert math.isnan(json_text.loads(b'{"a": NaN}')["a"])


@given(st.dictionaries(st.text(st.characters(), max_size=3), JSON, max_size=6), st.randoms())
def test_canonical_text_is_equal_for_equal_json_in_any_order(value: dict[str, Any], chance: Any) -> None:
    names = list(value)
    chance.shuffle(names)
    assert json_text.canonical({name: value[name] for name in names}) == json_text.canonical(value)
    assert digest({name: value[name] for name in names}) == digest(value)


@given(JSON, JSON)
def test_canonical_texts_differ_for_different_json(one: Any, other: Any) -> None:
    if json.dumps(one, sort_keys=True) != json.dumps(other, sort_keys=True):
        assert json_text.canonical(one) != json_text.canonical(other)


def test_canonical_text_tells_truth_from_one() -> None:
    assert len({json_text.canonical(value) for value in ({"a": True}, {"a": 1}, {"a": "1"}, {"a": None}, {})}) == 5


def test_text_that_is_kept_takes_no_more_memory_than_its_length() -> None:
    """The bytes that orjson returns have the whole buffer that it wrote into."""
    value = {str(number): "x" * 20 for number in range(50)}
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        kept = [json_text.packed(value) for _ in range(100)]
        size = (tracemalloc.get_traced_memory()[0] - before) / len(kept)
    finally:
        tracemalloc.stop()
    assert kept[0] == json_text.dumps(value)
    assert size < len(kept[0]) + 200
