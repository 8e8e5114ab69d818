"""Requests that are made again: answers of the same bytes are one object, whatever else is not."""

from __future__ import annotations

import pytest

from fleet_consumer.wire.errors import MalformedMessage
from fleet_consumer.wire.groups import DescribedGroup, DescribeGroupsRequest, DescribeGroupsResponse
from fleet_operator.observe.calls import Repeats

REQUEST = DescribeGroupsRequest(groups=("g",))
VERSION = DescribeGroupsRequest.MAX_VERSION


def answer(state: str = "Stable", version: int = VERSION) -> bytes:
    group = DescribedGroup(
        error_code=0, group_id="g", group_state=state, protocol_type="consumer", protocol_data="range", members=()
    )
    return DescribeGroupsResponse(groups=(group,)).encode(version)


def test_answer_of_the_same_bytes_is_the_same_object_from_poll_to_poll() -> None:
    repeats = Repeats()
    first = repeats.reuse(1, REQUEST).decode_response(VERSION, answer())
    repeats.end_poll()
    again = repeats.reuse(1, DescribeGroupsRequest(groups=("g",))).decode_response(VERSION, bytearray(answer()))
    assert again is first
    assert first == DescribeGroupsResponse.decode(VERSION, answer())


def test_answer_of_other_bytes_is_decoded() -> None:
    repeated = Repeats().reuse(1, REQUEST)
    first = repeated.decode_response(VERSION, answer())
    other = repeated.decode_response(VERSION, answer("Empty"))
    assert isinstance(other, DescribeGroupsResponse)
    assert other.groups[0].group_state == "Empty"
    back = repeated.decode_response(VERSION, answer())
    assert back == first
    assert back is not first, "only the last answer is remembered"


def test_version_is_part_of_the_answer_and_of_the_encoding() -> None:
    """A broker is upgraded or goes back while the client is connected."""
    repeated = Repeats().reuse(1, REQUEST)
    first = repeated.decode_response(VERSION, answer())
    assert repeated.decode_response(VERSION - 1, answer(version=VERSION - 1)) is not first
    for version in (VERSION, VERSION, VERSION - 1, 0, VERSION):
        assert repeated.encode(version) == REQUEST.encode(version)


def test_request_that_is_repeated_is_that_request_to_the_client() -> None:
    repeated = Repeats().reuse(1, REQUEST)
    assert (repeated.API_KEY, repeated.RESPONSE, repeated.version_max) == (
        REQUEST.API_KEY,
        REQUEST.RESPONSE,
        REQUEST.version_max,
    )
    assert repeated.is_flexible(VERSION)


def test_malformed_answer_is_reported_and_not_remembered() -> None:
    repeated = Repeats().reuse(1, REQUEST)
    first = repeated.decode_response(VERSION, answer())
    for _ in range(2):
        with pytest.raises(MalformedMessage):
            repeated.decode_response(VERSION, b"\x00")
    assert repeated.decode_response(VERSION, answer()) is first


def test_requests_to_several_brokers_have_an_answer_each() -> None:
    repeats = Repeats()
    assert repeats.reuse(1, REQUEST) is repeats.reuse(1, REQUEST)
    assert repeats.reuse(1, REQUEST) is not repeats.reuse(2, REQUEST)
    assert repeats.reuse(1, REQUEST) is not repeats.reuse(1, DescribeGroupsRequest(groups=("g", "h")))


def test_request_that_a_poll_did_not_make_is_forgotten() -> None:
    repeats = Repeats()
    kept, dropped = repeats.reuse(1, REQUEST), repeats.reuse(2, REQUEST)
    repeats.end_poll()
    assert repeats.reuse(1, REQUEST) is kept
    repeats.end_poll()
    assert repeats.reuse(1, REQUEST) is kept
    assert repeats.reuse(2, REQUEST) is not dropped


def test_poll_that_was_abandoned_costs_no_memory_of_the_one_before() -> None:
    repeats = Repeats()
    first = repeats.reuse(1, REQUEST)
    repeats.end_poll()
    repeats.reuse(2, REQUEST)  # and then nothing: no end
    assert repeats.reuse(1, REQUEST) is first
