"""Kubernetes' own types in the CRDs are those of the committed OpenAPI document."""

from __future__ import annotations

import json
from typing import Final

import pytest
import yaml

from tests.core_types.document import read
from tests.core_types.writing import CRDS, generated

CRD_BYTES_MAX: Final = 200_000
"""`kubectl apply` keeps an object in an annotation, and annotations may have 262,144 bytes."""

HEAD: Final = "host:\n  description: As in a pod.\n"
MARK: Final = "  # Kubernetes: HostAlias without hostnames\n"


@pytest.mark.parametrize("path", sorted(CRDS.glob("*.yaml")), ids=lambda path: path.stem)
def test_generated_parts_are_what_the_document_says(path: str) -> None:
    """After a change of either: `python -m tests.core_types`."""
    text = (CRDS / path).read_text()
    assert generated(text, read()) == text


@pytest.mark.parametrize("path", sorted(CRDS.glob("*.yaml")), ids=lambda path: path.stem)
def test_crd_fits_into_the_annotation_of_kubectl_apply(path: str) -> None:
    assert len(json.dumps(yaml.safe_load((CRDS / path).read_text()))) < CRD_BYTES_MAX


def test_what_is_written_by_hand_wins_and_what_follows_stays() -> None:
    text = f"{HEAD}  type: object\n  required: []\n{MARK}  properties: {{}}\nnext: 1\n"
    made = yaml.safe_load(generated(text, read()))
    assert made == {
        "host": {
            "description": "As in a pod.",
            "type": "object",
            "required": [],
            "properties": {"ip": {"type": "string", "maxLength": 1024}},
        },
        "next": 1,
    }


def test_lists_of_a_pod_s_spec_keep_their_keys() -> None:
    made = yaml.safe_load(generated("aliases:\n  maxItems: 3\n  # Kubernetes: PodSpec.hostAliases\n", read()))
    assert (made["aliases"]["x-kubernetes-list-type"], made["aliases"]["maxItems"]) == ("map", 3)
    assert made["aliases"]["x-kubernetes-list-map-keys"] == ["ip"]
