"""Reasons of failures: the same words in headers and in objects, by one mapping."""

from __future__ import annotations

from typing import get_args

import pytest

from fleet_consumer.contract.failure_reasons import FailureReason, from_api, to_api
from fleet_operator.api.v1alpha1.redrive import FailureWord


def test_objects_name_every_reason_in_camel_case() -> None:
    assert get_args(FailureWord) == tuple(to_api(reason) for reason in FailureReason)
    assert [from_api(to_api(reason)) for reason in FailureReason] == list(FailureReason)


@pytest.mark.parametrize(("reason", "word"), [("gone-astray", "GoneAstray"), ("", ""), ("é", "")])
def test_reasons_of_other_versions_become_camel_case(reason: str, word: str) -> None:
    assert to_api(reason) == word
