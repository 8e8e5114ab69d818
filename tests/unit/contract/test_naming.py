"""Names that operator and workers derive separately must come out equal, and within Kubernetes' and Kafka's limits."""

from __future__ import annotations

import itertools
import re
import string
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet_consumer.contract import naming


def test_java_hash_equals_values_printed_by_java() -> None:
    """`jshell> "…".hashCode()`, taken from a JVM; the emoji is two UTF-16 code units."""
    known = {"": 0, "flights": -771814909, "polygenelubricants": -2147483648, "é": 233, "😀": 1772899}
    assert {text: naming.java_string_hash(text) for text in known} == known


def test_group_with_the_smallest_int_hash_is_on_partition_zero() -> None:
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


PARTS = ("a", "retry", "failed", "redrive", "5m", "")
"""Parts of group ids: the words that managed topics add, a delay, and two dots in a row."""
DELAYS = ("1s", "5m", "90s", "7d")


def managed_topics(group_id: str, delays: Iterable[str]) -> list[str]:
    """The names of everything that one group may have."""
    names = [naming.retry_topic(group_id, delay) for delay in delays]
    return [*names, naming.failed_topic(group_id), naming.redrive_topic(group_id)]


def test_no_two_groups_share_a_managed_topic_even_if_their_ids_are_made_from_its_words() -> None:
    groups = [".".join(parts) for length in range(1, 6) for parts in itertools.product(PARTS, repeat=length)]
    names = [name for group_id in groups for name in managed_topics(group_id, DELAYS)]
    assert len(set(names)) == len(names) == len(groups) * (len(DELAYS) + 2)


GROUP_IDS = st.from_regex(r"[a-zA-Z0-9._-]{1,200}", fullmatch=True) | st.lists(
    st.sampled_from(PARTS), min_size=1, max_size=40
).map(".".join)


@given(GROUP_IDS, st.integers(min_value=1, max_value=naming.DELAY_SECONDS_MAX))
def test_name_of_a_managed_topic_says_its_group_its_kind_and_its_delay(group_id: str, seconds: int) -> None:
    """Read from its end, where the last part is a kind or a delay, and never both."""
    delay = naming.canonical_delay(seconds)
    for name, kind in zip(managed_topics(group_id, [delay]), (delay, "failed", "redrive"), strict=True):
        rest, _, last = name.removeprefix(naming.RESERVED_PREFIX).rpartition(".")
        assert last == kind
        assert naming.is_canonical_delay(last) == (kind is delay)
        assert rest.removesuffix(".retry" if kind is delay else "") == group_id
        assert len(name) <= 249, "the most that Kafka takes"


REVISION = "0123456789"


def children(name: str) -> dict[str, str]:
    """The names of a ConsumerGroup's children of each kind that has names of its own."""
    return {
        "workers": naming.main_workers(name),
        "retry workers": naming.retry_workers(name),
        "settings": naming.revision_config(name, REVISION),
        "handler": naming.revision_handler(name, REVISION),
        "check": naming.preflight_pod(name, REVISION),
        "skips": naming.skip_config(name),
    }


def test_longest_object_name_leaves_room_for_every_child() -> None:
    """A ConsumerGroup's name has at most 40 characters; a Pod's and a Service's must stay a DNS label of at most 63."""
    name = "n" * 40
    found = children(name)
    labels = {found["workers"], found["check"], naming.redrive_job(name)}
    pods = {f"{found[part]}-999" for part in ("workers", "retry workers")}
    revisions = {f"{found[part]}-{REVISION}" for part in ("workers", "retry workers")}
    assert max(map(len, labels | pods | revisions)) <= 63, "revisions are labels that the controller puts on pods"
    assert max(map(len, found.values())) <= 253, "the most that a ConfigMap's name may have"


WORDS = ("a", "fleet", "retry", "offsets", "check", REVISION, "handler")


def test_no_two_groups_want_a_child_of_the_same_name_even_if_they_are_called_like_children() -> None:
    groups = ["-".join(words) for length in range(1, 5) for words in itertools.product(WORDS, repeat=length)]
    names = [child for name in groups if name[0].isalpha() for child in children(name).values()]
    assert len(set(names)) == len(names)


def test_no_child_is_called_like_its_group() -> None:
    assert "orders" not in children("orders").values()


def test_delays_of_equal_length_share_one_topic() -> None:
    lengths = {"60s": "1m", "90s": "90s", "24h": "1d", "5m": "5m", "3600s": "1h", "120m": "2h", "604800s": "7d"}
    assert {text: naming.canonical_delay(naming.parse_delay(text)) for text in lengths} == lengths


@given(st.integers(min_value=1, max_value=naming.DELAY_SECONDS_MAX))
def test_every_delay_survives_the_way_through_its_canonical_form(seconds: int) -> None:
    assert naming.parse_delay(naming.canonical_delay(seconds)) == seconds


@pytest.mark.parametrize(
    "text", ["", "0s", "05s", "5", "m", "1w", "-5s", "1.5m", "5 m", "5S", "1234567s", "٥s", "5s\n"]
)
def test_text_that_is_no_delay_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(ValueError, match="such as 30s or 5m"):
        naming.parse_delay(text)


@pytest.mark.parametrize("text", ["8d", "169h", "604801s"])
def test_delay_beyond_a_week_is_refused_with_the_limit(text: str) -> None:
    with pytest.raises(ValueError, match="the longest delay is 7d"):
        naming.parse_delay(text)


@pytest.mark.parametrize("seconds", [0, -1, naming.DELAY_SECONDS_MAX + 1])
def test_seconds_out_of_range_have_no_canonical_form(seconds: int) -> None:
    with pytest.raises(ValueError, match="from 1 s to 604800 s"):
        naming.canonical_delay(seconds)


def test_every_topic_of_a_retry_flow_is_managed_and_hidden_from_patterns() -> None:
    topics = [naming.retry_topic("orders", "5m"), naming.redrive_topic("orders"), naming.failed_topic("orders")]
    assert topics == ["_fleet.orders.retry.5m", "_fleet.orders.redrive", "_fleet.orders.failed"]
    assert not any(naming.pattern_matches(re.compile(".*"), topic) for topic in topics)


def test_kafka_groups_of_the_retry_flow_differ_from_the_main_one() -> None:
    assert naming.retry_group("orders") == "orders.retry"
    assert naming.redrive_group("orders", "0f6c2f3e-8f0e-4e0d") == "orders.redrive.0f6c2f3e"
