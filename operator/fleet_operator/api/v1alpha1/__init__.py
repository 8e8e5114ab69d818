"""Version v1alpha1 of the API group consumerfleet.io: models of the kinds, and the types and reasons of conditions."""

from fleet_operator.api.v1alpha1.backfill import Backfill
from fleet_operator.api.v1alpha1.consumergroup import ConsumerGroup
from fleet_operator.api.v1alpha1.kafkacluster import KafkaCluster
from fleet_operator.api.v1alpha1.offsetreset import OffsetReset
from fleet_operator.api.v1alpha1.redrive import Redrive
from fleet_operator.api.v1alpha1.retrypolicy import RetryPolicy

__all__ = ["Backfill", "ConsumerGroup", "KafkaCluster", "OffsetReset", "Redrive", "RetryPolicy"]
