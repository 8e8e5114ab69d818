"""Which parts of a spec this version serves, and what it does in place of the others.

The CRDs are complete from the first version on; fields whose work comes later are accepted, have no effect and are
named in the condition `SpecHonored`.
"""

from __future__ import annotations

from dataclasses import dataclass

from fleet_operator.api.v1alpha1.consumergroup import ConsumerGroupSpec
from fleet_operator.api.v1alpha1.kafkacluster import KafkaClusterSpec


@dataclass(frozen=True, slots=True)
class Support:
    """Sentences about what is not served: `ignored` fields have no effect."""

    ignored: tuple[str, ...] = ()

    @property
    def complete(self) -> bool:
        return not self.ignored


def consumer_group_support(spec: ConsumerGroupSpec) -> Support:
    """What a ConsumerGroup asks for that this version does not do."""
    ignored = []
    if spec.consumer.protocol != "Classic":
        ignored.append("consumer.protocol: Consumer (the fleet runs Classic)")
    if spec.scaling is not None:
        ignored.append("scaling (the fleet keeps spec.replicas)")
    return Support(tuple(ignored))


def kafka_cluster_support(spec: KafkaClusterSpec) -> Support:
    """What a KafkaCluster asks for that this version does not do."""
    ignored = []
    if spec.offsets_topic.manage != "Observe":
        ignored.append("offsetsTopic.manage: Provision (the topic is only observed)")
    return Support(tuple(ignored))
