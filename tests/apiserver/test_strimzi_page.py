"""The objects of docs/strimzi.md are accepted by the API server."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.apiserver.conftest import Site
from tests.unit.test_strimzi_page import objects


@pytest.mark.parametrize("kind", ["KafkaCluster", "ConsumerGroup", "Secret"])
def test_objects_of_the_page_are_accepted(quiet_site: Callable[..., Site], kind: str) -> None:
    here = quiet_site(f"strimzi-page-{kind.lower()}")
    found = objects(kind)
    assert found
    for body in found:
        body["metadata"].pop("namespace", None)
        assert here.accepted(body)["kind"] == kind
