"""Names and retriable marks of error codes are those of an independent codec, and unknown codes do no harm."""

from __future__ import annotations

import pytest
from kio.schema.errors import ErrorCode as KioErrorCode

from fleet_consumer.wire.errors import ErrorCode, KafkaError, describe, is_retriable


def test_table_equals_that_of_an_independent_codec() -> None:
    ours = {code.value: (code.name, is_retriable(code)) for code in ErrorCode}
    assert ours == {code.value: (code.name.upper(), code.retriable) for code in KioErrorCode}


@pytest.mark.parametrize("code", [-2, 9999, 32767])
def test_unknown_code_is_described_by_its_number_and_not_retried(code: int) -> None:
    assert describe(code) == f"unknown error code {code}"
    assert not is_retriable(code)


def test_kafka_error_names_its_subject_its_code_and_the_brokers_message() -> None:
    error = KafkaError(16, "group 'flights'", "moved")
    assert str(error) == "group 'flights': NOT_COORDINATOR (16): moved"
    assert error.retriable
    assert str(KafkaError(0, "topic 't'")) == "topic 't': NONE (0)"
