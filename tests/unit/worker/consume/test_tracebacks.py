"""Tracebacks of handlers: logged once a minute for each place, always on the failed record, nowhere if switched off."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

from fleet_consumer.contract.section import SettingsInvalid
from fleet_consumer.contract.worker_config import parse_config
from fleet_consumer.librdkafka.producer import ProduceFailed
from fleet_consumer.record import Record, Skip
from fleet_consumer.retry.failure import STACK_BYTES_MAX
from fleet_consumer.worker.config.settings import with_environment
from tests.unit.retry.policies import policies
from tests.unit.worker.documents import worker_document
from tests.unit.worker.scripted import P0, Bench

SECRET = "card 4929-1234"


def look_up(record: Record) -> None:
    raise KeyError(SECRET)


def handle(record: Record) -> None:
    if record.offset % 2:
        raise ValueError(SECRET)
    look_up(record)


def exceptions(caplog: pytest.LogCaptureFixture) -> list[str]:
    told: list[dict[str, Any]] = [getattr(record, "fields", {}) for record in caplog.records]
    return [each["exception"] for each in told if "exception" in each]


def test_log_has_the_traceback_once_a_minute_for_each_place(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    bench = Bench(handle, {P0: [b"v"] * 60}, per_poll=10)
    bench.steps(6)
    first, second = exceptions(caplog)
    assert "in look_up" in first
    assert f'KeyError: "{SECRET}"' in first or f"KeyError: '{SECRET}'" in first
    assert "in handle" in second
    bench.clock.now += 61
    bench.consumer.logs[P0].append(b"v")
    bench.steps(1)
    assert len(exceptions(caplog)) == 3


def test_failed_record_carries_the_stack_of_its_error_and_a_retry_publish_does_not() -> None:
    bench = Bench(handle, {P0: [b"v"]})
    bench.steps(1)
    (calls,) = [(dict(headers)["kr-error-stack"] or b"").decode() for _, _, _, headers in bench.producer.written]
    here = str(Path(__file__))
    assert [line.rpartition(", in ")[2] for line in calls.splitlines()] == ["handle", "look_up"]
    assert all(line.startswith(f'File "{here}", line ') for line in calls.splitlines())
    retrying = Bench(handle, {P0: [b"v"]}, policies=lambda: policies("5s"))
    retrying.steps(1)
    assert "kr-error-stack" not in dict(retrying.producer.written[0][3])


def test_calls_are_cut_to_the_innermost_and_left_out_where_a_record_is_too_large_with_them() -> None:
    def deep(record: Record, level: int = 0) -> None:
        if level == 300:
            raise ValueError("no")
        deep(record, level + 1)

    bench = Bench(deep, {P0: [b"v"]})
    bench.steps(1)
    calls = dict(bench.producer.written[0][3])["kr-error-stack"]
    assert 0 < len(calls or b"") <= STACK_BYTES_MAX
    full = Bench(deep, {P0: [b"v"]})
    full.producer.refuse = lambda topic, value, headers: (
        ProduceFailed(topic, "MSG_SIZE_TOO_LARGE", "too large") if "kr-error-stack" in dict(headers) else None
    )
    full.steps(3)
    assert "kr-error-stack" not in dict(full.producer.written[0][3])


def test_error_text_appears_nowhere_when_switched_off(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)

    def skips(record: Record) -> None:
        if record.offset == 2:
            raise Skip(SECRET)
        handle(record)

    bench = Bench(skips, {P0: [b"v"] * 3}, error_text=False)
    bench.steps(1)
    assert SECRET not in str([(record.getMessage(), getattr(record, "fields", "")) for record in caplog.records])
    assert exceptions(caplog) == []
    for _, _, _, headers in bench.producer.written:
        told = dict(headers)
        assert (told["kr-error-message"], "kr-error-stack" in told) == (b"", False)
    assert [dict(headers)["kr-error-class"] for *_, headers in bench.producer.written] == [b"KeyError", b"ValueError"]


def test_the_switch_is_an_environment_variable_of_the_pod() -> None:
    config = parse_config(worker_document())
    assert with_environment(config, {}).handler.error_text
    assert with_environment(config, {"FLEET_ERROR_TEXT": "on"}).handler.error_text
    assert not with_environment(config, {"FLEET_ERROR_TEXT": "off"}).handler.error_text
    with pytest.raises(SettingsInvalid, match="FLEET_ERROR_TEXT must be on or off"):
        with_environment(config, {"FLEET_ERROR_TEXT": "no"})
