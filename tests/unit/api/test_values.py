"""Parsed objects are values: what they share, nobody changes."""

from __future__ import annotations

import copy

from fleet_operator.api.v1alpha1 import ConsumerGroup

BODY = {
    "metadata": {"name": "orders"},
    "spec": {"topics": ["orders"], "clusterRef": {"name": "main"}, "handler": {"python": {"callable": "app:handle"}}},
}


def test_objects_that_leave_a_part_out_share_its_defaults() -> None:
    """A copy of the defaults at each validation was most of what a validation took."""
    one, other = ConsumerGroup.model_validate(BODY), ConsumerGroup.model_validate(BODY)
    assert one.spec.template is other.spec.template
    assert copy.deepcopy(one.spec) is one.spec
