"""Records read from the replica in the consumer's rack (KIP-392), and that replica's death."""

from __future__ import annotations

import json

from fleet_consumer import Consumer, TopicPartition
from fleet_consumer.net import ConnectionSettings
from tests.broker.members import produce, settings, unique
from tests.support.kafka_cluster import KafkaCluster, rack_of
from tests.support.waiting import eventually

COUNT = 500
PATIENCE_S = 120.0


class Reader:
    """A consumer in a rack: the offsets that it has read, and the broker that it fetches from."""

    def __init__(self, cluster: KafkaCluster, partition: TopicPartition, rack: str) -> None:
        self._partition = partition
        self._statistics = "{}"
        brokers = tuple(broker.bootstrap for broker in cluster.brokers.values())
        connection = ConnectionSettings(bootstrap_servers=brokers, client_id="test", request_timeout_ms=5_000)
        self.consumer = Consumer(
            settings(
                brokers[0],
                None,
                connection=connection,
                client_rack=rack,
                on_statistics=self._take,
                statistics_interval_ms=200,
            )
        )
        self.consumer.assign([partition])
        self.offsets: list[int] = []

    def _take(self, statistics: str) -> None:
        self._statistics = statistics

    def await_offset(self, offset: int) -> None:
        """Poll until every record before this offset has come, each once and in order."""

        def there() -> bool:
            self.offsets += [record.offset for record in self.consumer.poll(0.1)]
            assert self.offsets == list(range(len(self.offsets))), "lost, twice or out of order"
            return len(self.offsets) == offset

        eventually(there, timeout_s=PATIENCE_S, what=f"the records before {offset}")

    def await_broker(self, node: int) -> None:
        """Poll until librdkafka says that it fetches from this broker."""
        topic, number = self._partition

        def there() -> bool:
            self.offsets += [record.offset for record in self.consumer.poll(0.1)]
            topics = json.loads(self._statistics).get("topics", {})
            found = topics.get(topic, {}).get("partitions", {}).get(str(number), {})
            assert found.get("broker") == node, f"{found.get('broker')}, and the leader is {found.get('leader')}"
            return True

        eventually(there, timeout_s=PATIENCE_S, what=f"fetches from broker {node}")


def test_records_come_from_the_replica_in_the_rack_and_none_is_lost_when_it_dies(cluster: KafkaCluster) -> None:
    topic = cluster.create_topic(unique("near"), 1)
    leader = cluster.leader_of(topic, 0)
    near = next(node for node, broker in cluster.brokers.items() if broker is not leader)
    reader = Reader(cluster, TopicPartition(topic, 0), rack_of(near))
    with reader.consumer:
        produce(cluster.bootstrap, topic, 1, COUNT)
        reader.await_broker(near)
        produce(cluster.bootstrap, topic, 1, COUNT, first=COUNT)
        reader.await_offset(2 * COUNT)
        reader.await_broker(near)
        cluster.brokers[near].kill()
        produce(cluster.bootstrap, topic, 1, COUNT, first=2 * COUNT)
        reader.await_offset(3 * COUNT)
        assert cluster.leader_of(topic, 0) is leader
