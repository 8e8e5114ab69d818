"""Names that operator and workers derive separately must come out equal, and within Kubernetes' and Kafka's limits."""

from __future__ import annotations

import string

from hypothesis import given
from hypothesis import strategies as st

from fleet_consumer import naming


def test_java_hash_equals_values_printed_by_java() -> None:
    """`jshell> "…".hashCode()`, taken from a JVM; the emoji is two UTF-16 code units."""
    known = {"": 0, "flights": -771814909, "polygenelubricants": -2147483648, "é": 233, "😀": 1772899}
    assert {text: naming.java_string_hash(text) for text in known} == known


def test_group_whose_hash_is_the_smallest_int_falls_on_partition_zero() -> None:
    """Java's `Math.abs(Integer.MIN_VALUE)` is negative; Kafka maps it to 0 (`Utils.abs`)."""
    assert naming.coordinator_partition("polygenelubricants", 50) == 0


@given(st.text(max_size=200), st.integers(min_value=1, max_value=10_000))
def test_coordinator_partition_is_always_one_of_the_partitions(group: str, partitions: int) -> None:
    assert 0 <= naming.coordinator_partition(group, partitions) < partitions


@given(st.integers(min_value=0, max_value=10_000))
def test_ordinal_survives_the_way_through_an_instance_id(ordinal: int) -> None:
    prefix = naming.instance_id_prefix("shop", "orders", "0f6c2f3e-8f0e")
    assert naming.instance_ordinal(prefix, naming.instance_id("shop", "orders", "0f6c2f3e-8f0e", ordinal)) == ordinal


@given(st.text(max_size=60))
def test_instance_ids_of_others_have_no_ordinal(foreign: str) -> None:
    prefix = naming.instance_id_prefix("shop", "orders", "0f6c2f3e")
    tail = foreign.removeprefix(prefix)
    ours = tail != foreign and tail != "" and set(tail) <= set(string.digits)
    assert (naming.instance_ordinal(prefix, foreign) is not None) == ours


def test_managed_topics_are_recognised_by_their_reserved_prefix() -> None:
    assert naming.is_managed_topic(naming.failed_topic("orders"))
    assert not naming.is_managed_topic("orders")


def test_longest_object_name_leaves_room_for_every_child() -> None:
    """A ConsumerGroup's name has at most 40 characters; a Pod's name must stay a DNS label of at most 63."""
    name, revision = "n" * 40, "0123456789"
    children = [
        naming.stateful_set(name),
        naming.headless_service(name),
        naming.disruption_budget(name),
        naming.revision_config(name, revision),
        naming.revision_handler(name, revision),
        naming.preflight_pod(name, revision),
    ]
    assert max(len(child) for child in children) <= 63
