"""A worker's report stays small, whatever it owns: the operator drops one beyond 1 MiB, when it would need it most."""

from __future__ import annotations

from fleet_consumer.record import Record, TopicPartition
from fleet_consumer.retry.due import Waiting
from fleet_consumer.worker.consume.progress import WINDOW_FULL, WRITES_HELD, Hold, PartitionProgress
from fleet_consumer.worker.http_server import json_page
from fleet_consumer.worker.lifecycle.watchdog import IN_HAND_MAX
from fleet_consumer.worker.member import ENTRIES_MAX, member_document, retry_document
from fleet_operator.clients.worker_status import parse_member
from fleet_operator.planning.observation import StuckPartition
from fleet_operator.planning.status.consumergroup import STUCK_MAX, STUCK_MESSAGE_MAX
from tests.unit.worker.test_member import Lived

PLACES = [TopicPartition("shop.orders", number) for number in range(2_000)]
NOW = 1_700_000_000.0


def holding(message: str) -> Lived:
    """A worker that holds all its partitions, those of the highest numbers for longest."""
    lived = Lived()
    for number, place in enumerate(PLACES):
        partition = lived.bench.loop.partitions[place] = PartitionProgress(place)
        partition.position = partition.committed = 10**10 + number
        partition.hold = Hold(partition.position, NOW - number, "Unacknowledged", message)
    lived.bench.parts.pauses.reasons = dict.fromkeys(PLACES, frozenset({WRITES_HELD, WINDOW_FULL}))
    heads = {place: Waiting(7, round(NOW * 1000), round(NOW * 1000)) for place in PLACES}
    lived.state.retry = lambda: retry_document("retry", None, heads, lived.state.stats)
    lived.state.in_hand = tuple((Record(*place, 10**10, 0, None, None), NOW) for place in PLACES[:IN_HAND_MAX])
    return lived


def test_report_of_thousands_of_held_partitions_names_the_oldest_and_counts_all() -> None:
    lived = holding("m" * 5_000)
    lived.state.error = ValueError("e" * 2**20)
    document = member_document(lived.state)
    body = json_page(document).body
    assert len(body) < 384 << 10
    assert (document["stuckCount"], document["pausedCount"], document["retry"]["waitingCount"]) == (2_000,) * 3
    assert len(document["paused"]) == len(document["retry"]["waiting"]) == ENTRIES_MAX
    seen = parse_member("orders-0", body)
    assert seen is not None
    assert [each.partition for each in seen.stuck] == list(range(1_999, 999, -1)), "each keeps a worker"
    assert seen.work is not None
    assert len(seen.work.in_hand) == IN_HAND_MAX
    assert ENTRIES_MAX >= STUCK_MAX, "as many as the operator shows"
    assert seen.stuck[0] == StuckPartition(
        topic="shop.orders",
        partition=1_999,
        offset=10**10 + 1_999,
        since=NOW - 1_999,
        reason="Unacknowledged",
        message="m" * STUCK_MESSAGE_MAX,
    )
