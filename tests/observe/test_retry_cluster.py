"""Retry flows over three brokers, one of which goes away: unknown meanwhile, and never less than before."""

from __future__ import annotations

from fleet_consumer.contract import naming
from fleet_consumer.contract.managed_topics import WantedTopic
from fleet_operator.planning.observation import RetryObservation
from fleet_operator.planning.retry.topics import TopicsPlan
from tests.broker.members import unique
from tests.observe.polls import PATIENCE_S, commit, watching, write
from tests.support.kafka_cluster import KafkaCluster
from tests.support.waiting import eventually

PARTITIONS, EACH = 6, 4


def test_flow_is_unknown_while_a_broker_is_away_and_as_before_when_it_is_back() -> None:
    """One replica each: data led by the broker is then unavailable elsewhere."""
    with KafkaCluster() as cluster:
        group_id = unique("group")
        source = cluster.create_topic(unique("source"), PARTITIONS)
        with watching(cluster.bootstrap, group_id, source, ["1s"]) as watcher:
            assert watcher.subscription.retry
            names = list(watcher.subscription.retry.flow)
            wanted = tuple(WantedTopic(name=name, partitions=PARTITIONS, replication_factor=1) for name in names)
            assert watcher.admin.change_topics(TopicsPlan(create=wanted), retry_group="unused").refusals == []
            watcher.await_topics(names)
            topic = naming.retry_topic(group_id, "1s")
            for partition in range(PARTITIONS):
                write(cluster.bootstrap, topic, partition, EACH)

            def all_due() -> RetryObservation | None:
                seen = watcher.flow()
                return seen if seen.counted and seen.due_lag == PARTITIONS * EACH else None

            before = eventually(all_due, timeout_s=PATIENCE_S, what="all records to be due")
            assert before is not None
            assert (before.waiting, before.next_due_at) == (PARTITIONS * EACH, None)
            leaders = {cluster.leader_of(topic, partition).pid for partition in range(PARTITIONS)}
            assert len(leaders) == 3
            victim = cluster.leader_of(topic, 0)
            victim.kill()

            def unknown() -> bool:
                seen = watcher.flow()
                assert seen.waiting in (None, PARTITIONS * EACH), "a part of it was taken for all"
                return seen.waiting is None and seen.topics[topic].waiting is None and seen.error is not None

            eventually(unknown, timeout_s=PATIENCE_S, what="the flow to be unknown")
            assert watcher.flow().topics[topic].waiting != 0
            victim.start()
            after = eventually(all_due, timeout_s=PATIENCE_S, what="the flow to be known again")
            assert after is not None
            assert after.oldest_due_at is not None
            done = {(topic, partition): EACH for partition in range(PARTITIONS)}
            commit(cluster.bootstrap, naming.retry_group(group_id), done)
            eventually(lambda: watcher.flow().waiting == 0, timeout_s=PATIENCE_S, what="nothing to wait any more")
