"""Accepted-but-ignored spec fields, reported in `SpecHonored`.

The CRDs are complete from the first version on; fields of later versions are accepted and have no effect.
"""

from __future__ import annotations

from dataclasses import dataclass

from fleet_operator.api.v1alpha1.consumergroup import ConsumerGroupSpec
from fleet_operator.api.v1alpha1.kafkacluster import KafkaClusterSpec


@dataclass(frozen=True, slots=True)
class Support:
    """Fields without effect, each with the behaviour in its place."""

    ignored: tuple[str, ...] = ()

    @property
    def complete(self) -> bool:
        return not self.ignored


def consumer_group_support(spec: ConsumerGroupSpec) -> Support:
    """The ignored fields of a ConsumerGroup."""
    ignored = []
    if spec.consumer.protocol != "Classic":
        ignored.append("consumer.protocol: Consumer (the fleet runs Classic)")
    if spec.scaling is not None:
        ignored.append("scaling (the fleet keeps spec.replicas)")
    return Support(tuple(ignored))


def kafka_cluster_support(spec: KafkaClusterSpec) -> Support:
    """The ignored fields of a KafkaCluster."""
    ignored = []
    if spec.offsets_topic.manage != "Observe":
        ignored.append("offsetsTopic.manage: Provision (the topic is only observed)")
    return Support(tuple(ignored))
