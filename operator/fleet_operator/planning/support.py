"""Which parts of a spec this version serves, and what it does in place of the others.

The CRDs are complete from the first version on; fields whose work comes later are accepted, have no effect and are
named in the condition `SpecHonored`. What cannot be run at all without them is `blocking`: no worker is started.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from fleet_operator.api.v1alpha1.consumergroup import ConsumerGroupSpec, Deletion
from fleet_operator.api.v1alpha1.kafkacluster import KafkaClusterSpec

SASL_MECHANISMS: Final = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")


@dataclass(frozen=True, slots=True)
class Support:
    """Sentences about what is not served: `ignored` fields have no effect, `blocking` ones keep the fleet from
    running."""

    ignored: tuple[str, ...] = ()
    blocking: tuple[str, ...] = ()

    @property
    def complete(self) -> bool:
        return not self.ignored and not self.blocking


def consumer_group_support(spec: ConsumerGroupSpec) -> Support:
    """What a ConsumerGroup asks for that this version does not do."""
    ignored = []
    if spec.consumer.protocol != "Classic":
        ignored.append("consumer.protocol: Consumer (the fleet runs Classic)")
    if spec.retry is not None:
        ignored.append("retry (failed records go to the failed topic at once)")
    if spec.scaling is not None:
        ignored.append("scaling (the fleet keeps spec.replicas)")
    if spec.deletion != Deletion():
        ignored.append("deletion (the Kafka group and its topics are kept)")
    return Support(tuple(ignored))


def kafka_cluster_support(spec: KafkaClusterSpec) -> Support:
    """What a KafkaCluster asks for that this version does not do."""
    ignored, blocking = [], []
    if spec.offsets_topic.manage != "Observe":
        ignored.append("offsetsTopic.manage: Provision (the topic is only observed)")
    if spec.sasl is not None and spec.sasl.mechanism not in SASL_MECHANISMS:
        blocking.append(f"sasl.mechanism: {spec.sasl.mechanism} (use one of {', '.join(SASL_MECHANISMS)})")
    return Support(tuple(ignored), tuple(blocking))
