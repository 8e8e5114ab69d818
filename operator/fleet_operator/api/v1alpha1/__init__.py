"""Version v1alpha1 of the group consumerfleet.io: models that parse, and the vocabulary of conditions."""

from fleet_operator.api.v1alpha1.backfill import Backfill, BackfillSpec
from fleet_operator.api.v1alpha1.consumergroup import ConsumerGroup, ConsumerGroupSpec
from fleet_operator.api.v1alpha1.kafkacluster import KafkaCluster, KafkaClusterSpec
from fleet_operator.api.v1alpha1.model import API_VERSION, GROUP, VERSION
from fleet_operator.api.v1alpha1.offsetreset import OffsetReset, OffsetResetSpec
from fleet_operator.api.v1alpha1.redrive import Redrive, RedriveSpec
from fleet_operator.api.v1alpha1.retrypolicy import RetryPolicy, RetryPolicySpec

__all__ = [
    "API_VERSION",
    "GROUP",
    "VERSION",
    "Backfill",
    "BackfillSpec",
    "ConsumerGroup",
    "ConsumerGroupSpec",
    "KafkaCluster",
    "KafkaClusterSpec",
    "OffsetReset",
    "OffsetResetSpec",
    "Redrive",
    "RedriveSpec",
    "RetryPolicy",
    "RetryPolicySpec",
]
