"""Only templates that this operator made are ever run; a ConfigMap says nothing for itself."""

from __future__ import annotations

from typing import Any

import pytest

from fleet_operator.planning.fleet.revision import is_known, with_known
from fleet_operator.planning.fleet.rollout_facts import RevisionRecord
from fleet_operator.planning.labels import KNOWN_ANNOTATION

OURS = RevisionRecord(hash="a" * 10, pod_template={"spec": {"containers": [{"name": "worker"}]}})
EVIL = {"spec": {"containers": [{"name": "worker", "securityContext": {"privileged": True}}]}}
BARE: dict[str, Any] = {"metadata": {"name": "orders", "annotations": {}}}


def test_earlier_template_is_recognized() -> None:
    fleet = with_known(BARE, {OURS.hash: {"spec": OURS.pod_template["spec"]}, "b" * 10: {}})
    assert is_known(fleet, OURS)
    assert BARE["metadata"]["annotations"] == {}


@pytest.mark.parametrize("forged", [RevisionRecord(hash="a" * 10, pod_template=EVIL), RevisionRecord(hash="f" * 10)])
def test_record_of_another_template_or_another_revision_is_not_known(forged: RevisionRecord) -> None:
    assert not is_known(with_known(BARE, {OURS.hash: OURS.pod_template}), forged)


@pytest.mark.parametrize("told", ["", "[]", "{", "7", '{"aaaaaaaaaa": 1}', "[" * 50_000])
def test_annotation_that_cannot_be_read_names_nothing(told: str) -> None:
    assert not is_known({"metadata": {"annotations": {KNOWN_ANNOTATION: told}}}, OURS)


def test_fleet_that_names_no_template_has_no_records_and_neither_has_no_fleet() -> None:
    assert not is_known(BARE, OURS)
    assert not is_known(None, OURS)
