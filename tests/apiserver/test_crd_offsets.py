"""The largest reset that the operator takes on, as the API server stores it."""

from __future__ import annotations

import json
from collections.abc import Callable

from fleet_operator.api.v1alpha1 import OffsetReset
from fleet_operator.clients.kinds import OFFSET_RESET
from fleet_operator.planning.offsets.records import PARTITIONS_MAX, ResetPhase, ResetRecord
from fleet_operator.planning.offsets.targets import BYTES_MAX, GroupOffsets, Targets, find_targets
from fleet_operator.reconcilers.states import state_name
from tests.apiserver.conftest import Site
from tests.apiserver.offset_reset_rules import offset_reset

TOPIC = "t" * 42


def test_largest_reset_has_room_in_its_object_and_in_its_state(quiet_site: Callable[..., Site]) -> None:
    """One without it would be found out when the workers have been stopped."""
    here, far = quiet_site("crd-offsets"), {(TOPIC, number): 10**15 for number in range(PARTITIONS_MAX)}
    listed = [{"topic": topic, "partition": number, "offset": at} for (topic, number), at in far.items()]
    body = offset_reset({"spec.to": "Offsets", "spec.offsets": listed})
    read = GroupOffsets(state="Empty", counts={TOPIC: PARTITIONS_MAX}, committed=far, starts=far, ends=far)
    found = find_targets(OffsetReset.model_validate(body).spec, (TOPIC,), read)
    assert isinstance(found, Targets), found
    record = ResetRecord(phase=ResetPhase.COMMITTING, previous=found.previous, offsets=found.offsets)
    shown = record.shown()
    assert len(json.dumps(shown, separators=(",", ":"))) > 0.95 * BYTES_MAX
    here.client.create(here.name, body)
    here.client.merge_status("offsetresets", here.name, "again", shown)
    assert here.client.get("offsetresets", here.name, "again")["status"]["resolved"] == shown["resolved"]
    metadata = {"name": state_name(OFFSET_RESET, "again"), "namespace": here.name}
    head = {"apiVersion": body["apiVersion"], "kind": "OperatorState", "metadata": metadata}
    here.client.create(here.name, {**head, "data": {"facts": shown}})
    here.client.delete_all("offsetresets", here.name)
