"""`__consumer_offsets` and the brokers' settings for it, read live. Runs on the observer's thread; blocks."""

from __future__ import annotations

from typing import Final

from fleet_consumer.net import NetworkClient
from fleet_operator.api.v1alpha1.conditions import TOPIC_NOT_FOUND
from fleet_operator.observe import batches, folding
from fleet_operator.planning.observation import ClusterObservation

CALL_SECONDS: Final = 10.0


def read(client: NetworkClient) -> ClusterObservation:
    """An observation with nothing but the brokers, their settings and the topic. Raises NetError.

    Every broker is asked for its own settings: without the answer of one nothing is known.
    """
    metadata = client.metadata((batches.OFFSETS_TOPIC,), timeout_s=CALL_SECONDS)
    error = folding.topics(metadata)[batches.OFFSETS_TOPIC].error
    settings = {
        node: folding.broker_settings(client.call(address, batches.broker_config_request(node), timeout_s=CALL_SECONDS))
        for node, address in client.brokers.items()
    }
    configs = None
    if error is None:
        configs = client.call(None, batches.offsets_topic_config_request(), timeout_s=CALL_SECONDS)
    return ClusterObservation(
        observed_at=0.0,
        reachable=True,
        cluster_id=metadata.cluster_id,
        brokers=folding.brokers(metadata),
        offsets_topic=folding.offsets_topic(metadata, configs),
        offsets_topic_error=None if error == TOPIC_NOT_FOUND else error,
        broker_settings=settings,
    )
