"""Requests grow with brokers, not with groups; nothing is asked twice in one request."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from fleet_consumer.wire.list_offsets import LATEST
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
    requests = batches.list_offsets_requests(partitions, LATEST)
    asked = [(t.name, p.partition_index) for r in requests for t in r.topics for p in t.partitions]
    assert sorted(asked) == sorted(partitions)
    for request in requests:
        assert len({topic.name for topic in request.topics}) == len(request.topics)
    for request in requests:
        assert request.decode(8, request.encode(8)) == request
