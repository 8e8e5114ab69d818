"""Whatever the other side sends, the call ends with one clear error, soon, and the next one gets a fresh connection."""

from __future__ import annotations

import contextlib
import struct
import tracemalloc

import pytest

from fleet_consumer.net import AllBrokersUnreachable, MalformedResponse
from fleet_consumer.net.session import FrameDecoder
from fleet_consumer.wire.errors import MalformedMessage
from fleet_consumer.wire.groups import HeartbeatRequest, ListGroupsRequest
from tests.support.broker_headers import encode_response
from tests.unit.net.clients import LIST_GROUPS, NO_GROUPS, PATIENCE_S, connected, finish
from tests.unit.net.scripted_broker import Answer, Asked, Raw, ScriptedBroker, framed

HEARTBEAT = HeartbeatRequest(group_id="g", generation_id=1, member_id="m")


def wrong_number(asked: Asked) -> Answer:
    return Raw(framed(encode_response(NO_GROUPS, asked.version, asked.correlation_id + 1)))


def answered_twice(asked: Asked) -> Answer:
    return Raw(framed(encode_response(NO_GROUPS, asked.version, asked.correlation_id)) * 2)


def too_long_body(asked: Asked) -> Answer:
    return Raw(framed(encode_response(NO_GROUPS, asked.version, asked.correlation_id) + b"\0"))


HOSTILE = {
    "a message of 2 GiB is announced": lambda _: Raw(b"\x7f\xff\xff\xff"),
    "a message of negative size is announced": lambda _: Raw(b"\xff\xff\xff\xff"),
    "an empty message": lambda _: Raw(framed(b"")),
    "half a header": lambda _: Raw(framed(b"\0\0")),
    "a header without a body": lambda asked: Raw(framed(struct.pack(">ib", asked.correlation_id, 0))),
    "an array of 2 thousand million": lambda asked: Raw(
        framed(struct.pack(">ib", asked.correlation_id, 0) + b"\0" * 6 + b"\xff\xff\xff\xff\x0f")
    ),
    "another number than was asked": wrong_number,
    "a body that goes on": too_long_body,
    "text of another protocol": lambda _: Raw(b"HTTP/1.1 400 Bad Request\r\n\r\n"),
}


@pytest.mark.parametrize("answer", HOSTILE.values(), ids=HOSTILE.keys())
def test_invalid_answer_ends_the_call_and_the_connection(answer: object) -> None:
    with ScriptedBroker() as broker, connected(broker.address) as client:
        broker.on(ListGroupsRequest, answer)  # type: ignore[arg-type]  # the table's values are all answers
        calls = [client.send(broker.address, LIST_GROUPS) for _ in range(2)]
        finish(client, *calls)
        for call in calls:
            assert isinstance(call.error, MalformedResponse)
            assert call.error.address == broker.address
        broker.on(ListGroupsRequest, lambda _: NO_GROUPS)
        assert client.call(broker.address, LIST_GROUPS, timeout_s=PATIENCE_S) == NO_GROUPS
        assert broker.connections == 2


def test_answer_that_nothing_was_asked_for_ends_the_connection() -> None:
    with ScriptedBroker() as broker, connected(broker.address) as client:
        broker.on(ListGroupsRequest, answered_twice)
        first = client.send(broker.address, LIST_GROUPS)
        finish(client, first)
        assert first.response == NO_GROUPS
        broker.on(ListGroupsRequest, lambda _: NO_GROUPS)
        with contextlib.suppress(MalformedResponse):  # whether it hits the next call is a matter of timing
            client.call(broker.address, LIST_GROUPS, timeout_s=PATIENCE_S)
        assert client.call(broker.address, LIST_GROUPS, timeout_s=PATIENCE_S) == NO_GROUPS
        assert broker.connections == 2


def test_server_of_another_protocol_is_named_as_such() -> None:
    class NotKafka(ScriptedBroker):
        def _answer(self, stream: object, message: bytes, number: int) -> bool:
            stream.sendall(b"SSH-2.0-OpenSSH_9.2\r\n")  # type: ignore[attr-defined]
            return False

    with (
        NotKafka() as broker,
        connected(broker.address) as client,
        pytest.raises(MalformedResponse, match="is it a Kafka broker"),
    ):
        client.metadata(timeout_s=PATIENCE_S)


def test_disconnecting_broker_is_unreachable_with_its_last_error_and_backoff() -> None:
    class Rude(ScriptedBroker):
        def _answer(self, stream: object, message: bytes, number: int) -> bool:
            return False

    with Rude() as broker, connected(broker.address, reconnect_backoff_ms=50) as client:
        with pytest.raises(AllBrokersUnreachable, match="closed by the broker; does this listener require TLS or SASL"):
            client.metadata(timeout_s=0.5)
        assert 2 <= broker.connections <= 15


def test_announced_size_costs_no_memory() -> None:
    decoder = FrameDecoder()
    decoder.frame_bytes_max = 2**31 - 1
    tracemalloc.start()
    try:
        decoder.feed(struct.pack(">i", 2**31 - 1) + b"x" * 1000)
        assert decoder.next_frame() is None
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 100_000


def test_answer_may_be_as_long_as_its_api_needs_and_no_longer() -> None:
    """A hundred MiB in place of a heartbeat's few bytes are refused by their announcement."""
    for request, longest in ((HEARTBEAT, 64 * 1024), (LIST_GROUPS, 32 * 1024 * 1024)):
        with ScriptedBroker() as broker, connected(broker.address) as client:
            size = longest + 1
            broker.on(type(request), lambda _, size=size: Raw(struct.pack(">i", size)))  # type: ignore[misc]
            with pytest.raises(MalformedResponse, match=f"{longest + 1} bytes, above the limit of {longest}"):
                client.call(broker.address, request, timeout_s=PATIENCE_S)


def test_stream_is_cut_into_the_same_messages_however_it_arrives() -> None:
    messages = [b"", b"a", b"b" * 1000, b"\0" * 7]
    stream = b"".join(framed(message) for message in messages)
    for step in (1, 2, 3, 5, 100, len(stream)):
        decoder = FrameDecoder()
        found = []
        for start in range(0, len(stream), step):
            decoder.feed(stream[start : start + step])
            while (message := decoder.next_frame()) is not None:
                found.append(message)
        assert found == messages


def test_tls_alert_in_plain_text_is_recognized() -> None:
    decoder = FrameDecoder()
    decoder.feed(b"\x15\x03\x03\x00\x02\x02\x46")
    with pytest.raises(MalformedMessage, match="it speaks TLS"):
        decoder.next_frame()
