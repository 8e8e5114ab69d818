"""Three real Kafka brokers on loopback, each with the faults of `KafkaBroker`, and requests to the cluster."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from confluent_kafka import ElectionType, KafkaException
from confluent_kafka import TopicPartition as Part
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from e2e.local_cluster.daemons import free_ports
from fleet_consumer.contract.naming import coordinator_partition
from fleet_consumer.net import ConnectionSettings, Coordinator, NetError, NetworkClient
from fleet_consumer.wire.topics import MetadataResponsePartition
from tests.support.kafka import ADDRESS, KafkaBroker, Place
from tests.support.kafka_template import new_cluster_id
from tests.support.kafka_topics import make_topics
from tests.support.lifetime import Server
from tests.support.waiting import eventually

T = TypeVar("T")

__all__ = ["OFFSETS_TOPIC", "KafkaCluster", "rack_of"]

OFFSETS_TOPIC = "__consumer_offsets"
OFFSETS_PARTITIONS = 6
PATIENCE_S = 120.0

REPLICATED = {
    "offsets.topic.num.partitions": str(OFFSETS_PARTITIONS),
    "offsets.topic.replication.factor": "3",
    "transaction.state.log.replication.factor": "3",
    "transaction.state.log.min.isr": "2",
    "default.replication.factor": "3",
    # Acknowledged records are on two brokers, so the loss of one broker loses none.
    "min.insync.replicas": "2",
    "group.min.session.timeout.ms": "1000",
    # A dead broker is noticed within four seconds instead of nine. With less, three brokers on a busy machine would
    # consider each other dead.
    "broker.session.timeout.ms": "4000",
    "broker.heartbeat.interval.ms": "500",
    "controlled.shutdown.enable": "true",
    # Clients that name a rack read from the replica in it (KIP-392); the others never notice.
    "replica.selector.class": "org.apache.kafka.common.replica.RackAwareReplicaSelector",
}


def rack_of(node: int) -> str:
    """The rack of a broker: each has one of its own."""
    return f"rack-{node}"


class KafkaCluster(Server):
    """Brokers 1 to 3, each also a controller, so that any one may be down; a context manager like `KafkaBroker`.

    ``proxied_as`` maps node ids to the ``host:port`` advertised on the listener behind a proxy.
    """

    def __init__(
        self,
        *,
        properties: Mapping[str, str] | None = None,
        proxied_as: Mapping[int, str] | None = None,
        jvm_options: Sequence[str] = (),
    ) -> None:
        nodes = (1, 2, 3)
        ports = free_ports(len(nodes), ADDRESS)
        controllers = {node: f"{ADDRESS}:{port}" for node, port in zip(nodes, ports, strict=True)}
        cluster_id = new_cluster_id()
        self.brokers: dict[int, KafkaBroker] = {
            node: KafkaBroker(
                properties={**REPLICATED, "broker.rack": rack_of(node), **(properties or {})},
                place=Place(node, cluster_id, controllers),
                proxied_as=(proxied_as or {}).get(node),
                jvm_options=("-Xms64m", *jvm_options),
            )
            for node in nodes
        }

    @property
    def bootstrap(self) -> str:
        """The plain-text listeners of all brokers, separated by commas."""
        return ",".join(broker.bootstrap for broker in self.brokers.values())

    def start(self) -> None:
        """Start every broker that does not run, and wait until each takes part."""
        # Together: none of them is ready before a majority is there.
        self._each("start", [broker for broker in self.brokers.values() if not broker.running])

    def close(self) -> None:
        """End all brokers and remove their files."""
        self._each("close", list(self.brokers.values()))

    def heal(self) -> None:
        """Undo faults: start or resume every broker and wait until all are in sync, as the next test expects."""
        for broker in self.brokers.values():
            if broker.running:
                broker.resume()
        self.start()
        self.await_in_sync()

    def create_topic(self, topic: str, partitions: int, *, replicas: int = 3) -> str:
        """Create a topic, wait until it can be written to, and return its name."""
        admin = AdminClient({"bootstrap.servers": self.bootstrap})
        make_topics(admin, [NewTopic(topic, partitions, replicas)])
        eventually(
            lambda: all(part.leader_id > 0 for part in self._partitions(topic)),
            timeout_s=PATIENCE_S,
            what=f"leaders of {topic}",
        )
        return topic

    def leader_of(self, topic: str, partition: int) -> KafkaBroker:
        """The leader of a partition, once a running broker leads it."""

        def led() -> KafkaBroker | None:
            part = next(each for each in self._partitions(topic) if each.partition_index == partition)
            return self._running(part.leader_id)

        leader = eventually(led, timeout_s=PATIENCE_S, what=f"a leader of {topic}-{partition}")
        assert leader is not None
        return leader

    def in_sync(self, topic: str, partition: int) -> set[int]:
        """The nodes in sync with a partition's leader, as the running brokers know it."""
        return set(next(each for each in self._partitions(topic) if each.partition_index == partition).isr_nodes)

    def coordinator_of(self, group: str) -> KafkaBroker:
        """The coordinator of a group, once it is a running broker."""

        def found() -> KafkaBroker | None:
            with_client = self._ask(lambda client: client.find_coordinators([group], timeout_s=5.0))
            answer = with_client[group]
            if not isinstance(answer, Coordinator):
                raise AssertionError(answer)
            return self._running(answer.node_id)

        broker = eventually(found, timeout_s=PATIENCE_S, what=f"a coordinator of {group}")
        assert broker is not None
        return broker

    def _running(self, node: int) -> KafkaBroker | None:
        broker = self.brokers.get(node)
        return broker if broker is not None and broker.running else None

    def move_coordinator(self, group: str) -> KafkaBroker:
        """Move the leadership of the group's offsets partition to another broker, cleanly; returns the new one."""
        number = coordinator_partition(group, OFFSETS_PARTITIONS)
        part = next(each for each in self._partitions(OFFSETS_TOPIC) if each.partition_index == number)
        # The first replica is the preferred leader: put the others first, and elect them.
        order = [node for node in part.replica_nodes if node != part.leader_id] + [part.leader_id]
        wanted = {"topic": OFFSETS_TOPIC, "partition": number, "replicas": order}
        any_broker = next(iter(self.brokers.values()))
        plan = any_broker.directory / "reassignment.json"
        plan.write_text(json.dumps({"version": 1, "partitions": [wanted]}))
        self._reassign(any_broker, plan)
        new = self.brokers[order[0]]
        admin = AdminClient({"bootstrap.servers": self.bootstrap})

        def led() -> bool:
            # Refused while the replica is not in sync or the broker is considered dead: asked again until it leads.
            try:
                admin.elect_leaders(ElectionType.PREFERRED, [Part(OFFSETS_TOPIC, number)]).result()
            except KafkaException as error:
                raise AssertionError(str(error)) from error
            return self.leader_of(OFFSETS_TOPIC, number) is new

        eventually(led, timeout_s=PATIENCE_S, what="the leader to change", poll_s=0.5)
        return new

    def await_in_sync(self, timeout_s: float = PATIENCE_S) -> None:
        """Wait until every replica of every topic is in sync."""

        def in_sync() -> bool:
            behind = self.lagging()
            assert not behind, f"not in sync: {behind[:5]}"
            return True

        eventually(in_sync, timeout_s=timeout_s, what="all replicas to be in sync", poll_s=0.2)

    def lagging(self) -> list[tuple[str | None, int]]:
        """The partitions (topic, number) with a replica that is not in sync; AssertionError while a broker is down."""
        metadata = self._ask(lambda client: client.metadata(None, timeout_s=5.0))
        assert len(metadata.brokers) == len(self.brokers), f"only {len(metadata.brokers)} brokers"
        return [
            (topic.name, part.partition_index)
            for topic in metadata.topics
            for part in topic.partitions
            if len(part.isr_nodes) < len(part.replica_nodes)
        ]

    def _reassign(self, broker: KafkaBroker, plan: Path) -> None:
        broker.tool(
            "org.apache.kafka.tools.reassign.ReassignPartitionsCommand",
            *("--bootstrap-server", self.bootstrap, "--reassignment-json-file", str(plan), "--execute"),
        )

    def _partitions(self, topic: str) -> tuple[MetadataResponsePartition, ...]:
        answer = self._ask(lambda client: client.metadata([topic], timeout_s=5.0)).topics[0]
        assert answer.partitions, f"{topic}: error {answer.error_code}"
        return answer.partitions

    def _ask(self, question: Callable[[NetworkClient], T]) -> T:
        """Ask any broker that answers. Raises AssertionError, meaning "not yet", if none does."""
        alive = tuple(broker.bootstrap for broker in self.brokers.values() if broker.running)
        client = NetworkClient(ConnectionSettings(bootstrap_servers=alive, client_id="tests", request_timeout_ms=3_000))
        try:
            return question(client)
        except NetError as error:
            raise AssertionError(str(error)) from error
        finally:
            client.close()

    def _each(self, call: str, brokers: list[KafkaBroker]) -> None:
        with ThreadPoolExecutor(len(self.brokers)) as pool:
            for done in [pool.submit(getattr(broker, call)) for broker in brokers]:
                done.result()
