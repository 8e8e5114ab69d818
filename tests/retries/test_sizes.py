"""The largest records of a source pass every retry publish unchanged, and so do those that compress well."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from tests.broker.retry_fleet import SIZES
from tests.broker.workers import Kafka
from tests.retries.scene import Flow
from tests.retries.test_commands_by_hand import ask
from tests.support.writing import SureProducer

pytestmark = pytest.mark.together

SOURCE_LIMIT = 1_048_588
KEY = b"key"
FOREIGN: list[tuple[str, str | bytes | None]] = [("trace", b"t-1"), ("trace", b"t-2"), ("empty", b""), ("none", None)]


def test_a_record_at_the_limit_of_its_source_survives_every_retry_publish(kafka: Kafka, tmp_path: Path) -> None:
    flow = Flow(kafka, tmp_path, "1s", "2s", "2s", partitions=1)
    filling = os.urandom(SOURCE_LIMIT // 2).hex()
    size = largest(flow, filling)
    assert SOURCE_LIMIT - 300 < size < SOURCE_LIMIT
    assert_survives(flow, value_of(filling, size))


def test_a_record_that_only_fits_compressed_survives_every_retry_publish(kafka: Kafka, tmp_path: Path) -> None:
    """Topics limit the compressed size on arrival; the uncompressed size may be several times that."""
    flow = Flow(kafka, tmp_path, "1s", "2s", "2s", partitions=1)
    value = value_of("all the same " * 400_000, 4_000_000)
    assert write(flow, value, compression="zstd") is None
    assert_survives(flow, value)


def test_a_record_that_only_fits_as_its_source_compressed_it_survives_every_retry_publish(
    kafka: Kafka, tmp_path: Path
) -> None:
    """Hexadecimal digits: little more than half as much for gzip and zstd, and all of it for lz4."""
    flow = Flow(kafka, tmp_path, "1s", "2s", "2s", partitions=1)
    value = value_of(os.urandom(1_000_000).hex(), 1_800_000)
    assert write(flow, value, compression="lz4") is not None
    assert write(flow, value, compression="gzip") is None
    assert_survives(flow, value)


def test_small_records_behind_a_large_one_are_not_refused_with_it(kafka: Kafka, tmp_path: Path) -> None:
    flow = Flow(kafka, tmp_path, "1s", partitions=1)
    filling = os.urandom(SOURCE_LIMIT // 2).hex()
    values = [value_of(filling, size) for size in (300, 900_000, 300, 700_000, 300, 300)]
    assert_fail_in_order(flow, values)


def test_records_of_every_size_come_to_the_failed_topic_unchanged_and_in_order(kafka: Kafka, tmp_path: Path) -> None:
    flow = Flow(kafka, tmp_path, "1s", partitions=1)
    (tmp_path / "handler.py").write_text("def handle(record):\n    raise ValueError('asked to fail')\n")
    values = [os.urandom(size) for size in (*SIZES, *reversed(SIZES))]
    assert_fail_in_order(flow, values)


def test_records_above_librdkafkas_own_limit_are_written_and_skipped_in_a_group_without_retries(
    kafka: Kafka, tmp_path: Path
) -> None:
    """That limit is 1,000,000 bytes; their topics take more."""
    flow = Flow(kafka, tmp_path, "1s", partitions=1)
    (tmp_path / "handler.py").write_text(
        "from fleet_consumer import Produce\n\n\ndef handle(record):\n    if record.offset == 0:\n"
        f"        raise ValueError('asked to fail')\n    return Produce({flow.output!r}, record.value)\n"
    )
    fails, answered, skipped = (os.urandom(1_020_000) for _ in range(3))
    for value in (fails, answered):
        assert write(flow, value) is None
    with flow.worker(retry=None) as worker:
        flow.wait_drained()
        assert worker.terminate() == 0
    assert [each.value for each in kafka.read(flow.output)] == [answered]
    assert write(flow, skipped) is None
    ask("skip", f"{flow.source}-0:2", "--group", flow.group, "--bootstrap", kafka.bootstrap)
    assert [each.value for each in kafka.read(flow.failed)] == [fails, skipped]
    assert kafka.committed(flow.group, flow.source) == {0: 3}


def assert_fail_in_order(flow: Flow, values: list[bytes]) -> None:
    """Write records to the one partition of the source; all come to the failed topic, unchanged and in their order."""
    for value in values:
        assert write(flow, value) is None
    with flow.worker(), flow.retry_worker():
        failed = flow.wait_failed(len(values))
        flow.wait_drained()
    assert [each.value for each in sorted(failed, key=lambda each: each.offset)] == values


def assert_survives(flow: Flow, value: bytes) -> None:
    with flow.worker(), flow.retry_worker():
        (failed,) = flow.wait_failed(1)
        flow.wait_drained()
    assert (failed.key, failed.value) == (KEY, value)
    assert [each.attempt for each in flow.assert_none_early()] == [0, 1, 2, 3]
    assert {name: failed.headers[name] for name in ("trace", "empty", "none")} == dict(FOREIGN)
    assert failed.headers["kr-error-class"] == b"ValueError", "there was room for the details"


def value_of(filling: str, size: int) -> bytes:
    """A value of exactly this many bytes that asks to fail."""
    frame = json.dumps({"n": 1, "do": "fail", "filling": ""}).encode()
    value = frame.replace(b'""}', b'"' + filling[: size - len(frame)].encode() + b'"}')
    assert len(value) == size
    return value


def largest(flow: Flow, filling: str) -> int:
    """The size of the largest value that the source takes; it holds a record of that size afterwards, and no other."""
    taken, refused = 0, SOURCE_LIMIT
    low = SOURCE_LIMIT - 300
    while refused - low > 1:
        middle = (low + refused) // 2
        # Measured on a twin of the source, so that the source holds only the largest.
        if write(flow, value_of(filling, middle), topic=flow.output) is None:
            taken = low = middle
        else:
            refused = middle
    assert write(flow, value_of(filling, taken)) is None
    return taken


def write(flow: Flow, value: bytes, *, topic: str | None = None, compression: str = "none") -> Any:
    """Write one record; return the error when the broker refuses it."""
    errors: list[Any] = []
    settings = {"message.max.bytes": 100_000_000, "compression.type": compression}
    producer = SureProducer({"bootstrap.servers": flow.kafka.bootstrap, **settings})
    producer.produce(
        topic or flow.source, value, KEY, headers=FOREIGN, on_delivery=lambda error, _: errors.append(error)
    )
    assert producer.flush(60) == 0
    return errors[0]
