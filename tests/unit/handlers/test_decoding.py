"""A handler gets what it was promised; anything else is undecodable, and never an error of another kind."""

from __future__ import annotations

import contextlib
import json
import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from fleet_consumer.handlers.performing import Decoder, decoder
from fleet_consumer.retry.failure import Undecodable


def needed(field: str, format_name: str) -> Decoder:
    made = decoder(field, format_name)
    assert made is not None
    return made


def test_bytes_need_no_decoder() -> None:
    assert decoder("value", "Bytes") is None


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.text(), lambda inner: st.lists(inner, max_size=3)))
def test_json_of_another_writer_is_read_back(value: object) -> None:
    assert needed("value", "Json")(json.dumps(value, ensure_ascii=False).encode()) == value


@given(st.text('{}[]",: \n12ae.\\tn', max_size=16))
@example("")
@example(' {"a": 1}\n')
@example('{"a": 1} x')
@example('{"a": }')
def test_json_is_read_as_the_standard_library_reads_it(text: str) -> None:
    decode = needed("value", "Json")
    try:
        expected = json.loads(text)
    except json.JSONDecodeError as error:
        with pytest.raises(Undecodable, match=re.escape(f"{error.msg} at character {error.pos}")):
            decode(text.encode())
    else:
        assert decode(text.encode()) == expected


@given(st.binary(max_size=64), st.sampled_from(["String", "Json"]))
def test_any_bytes_are_either_decoded_or_undecodable(raw: bytes, format_name: str) -> None:
    decode = needed("value", format_name)
    with contextlib.suppress(Undecodable):
        assert format_name == "Json" or decode(raw).encode() == raw
        decode(raw)


@pytest.mark.parametrize(
    ("raw", "told"),
    [
        (b"", "character 0"),
        (b'{"a": 1,}', "character [78]"),  # Python 3.13 and newer name the comma
        (b"NaN", "NaN"),
        (b"[" * 1_000_000, "recursion|Stack overflow"),
        (b"9" * 5000, "digits"),
        (b'"\xff"', "UTF-8 at byte 1"),
        (b"\xef\xbb\xbf{}", "character 0"),
    ],
    ids=["empty", "trailing comma", "NaN", "too deep", "too long a number", "not UTF-8", "byte order mark"],
)
def test_invalid_json_reports_the_place(raw: bytes, told: str) -> None:
    with pytest.raises(Undecodable, match=told) as caught:
        needed("value", "Json")(raw)
    assert "handler.decode.value" in str(caught.value)


def test_invalid_utf8_reports_the_place() -> None:
    with pytest.raises(Undecodable, match=r"the key .* byte 2"):
        needed("key", "String")(b"ab\xff")


def test_content_is_never_in_the_message() -> None:
    """The bytes may be somebody's data; they stay in the failed record and out of logs and headers."""
    with pytest.raises(Undecodable) as caught:
        needed("value", "Json")(b'{"iban": "DE02 1203", oops}')
    assert "DE02" not in str(caught.value)
