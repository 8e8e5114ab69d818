"""Requests grow with brokers, not with groups; nothing is asked twice in one request."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet_consumer.wire.topics import LATEST
from fleet_operator.observe import batches


def test_thousand_groups_of_one_coordinator_are_two_requests_each() -> None:
    groups = [f"g{n}" for n in range(1000)]
    assert [len(request.groups) for request in batches.describe_requests(groups)] == [500, 500]
    fetched = batches.offset_fetch_requests({group: {"t": 3} for group in groups})
    assert [len(request.groups) for request in fetched] == [500, 500]


def test_group_with_a_pattern_asks_for_all_its_commits() -> None:
    (request,) = batches.offset_fetch_requests({"pattern": None, "named": {"t": 2}})
    topics = {group.group_id: group.topics for group in request.groups}
    assert topics["pattern"] is None
    assert topics["named"]
    assert topics["named"][0].partition_indexes == (0, 1)


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 50)), unique=True))
def test_every_partition_is_asked_once(partitions: list[tuple[str, int]]) -> None:
    requests = batches.list_offsets_requests(dict.fromkeys(partitions, LATEST))
    asked = [(t.name, p.partition_index) for r in requests for t in r.topics for p in t.partitions]
    assert sorted(asked) == sorted(partitions)
    for request in requests:
        assert len({topic.name for topic in request.topics}) == len(request.topics)
    for request in requests:
        assert request.decode(8, request.encode(8)) == request


@pytest.mark.parametrize("length", [1, 249])
def test_commit_of_many_partitions_fits_into_batches_of_the_brokers(length: int) -> None:
    """One batch for each request: a broker refuses one of more than a MiB, and so all offsets of the reset."""
    topics = ["a" * length, "b" * length]
    wanted = {(topic, number): number + 7 for topic in topics for number in range(2500)}
    requests = batches.offset_commit_requests("g" * 255, wanted, "fleet-reset=0123456789abcdef")
    found: dict[tuple[str, int], int] = {}
    for request in requests:
        assert (request.member_id, request.generation_id_or_member_epoch) == ("", -1)
        entries = [(topic.name, each) for topic in request.topics for each in topic.partitions]
        assert len(entries) <= 1000
        assert sum(80 + 255 + len(name) + len(each.committed_metadata or "") for name, each in entries) <= 128 * 1024
        for name, each in entries:
            found[name, each.partition_index] = each.committed_offset
    assert found == wanted
    assert batches.offset_commit_requests("g", {}, "") == []
