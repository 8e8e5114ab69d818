"""Builders of a Redrive's children: its Job, and the ConfigMap with the Job's settings.

The Job's pod is the worker's pod with another command. It has the same image, service account, credentials, placement
and environment, so the Job reaches the brokers if a worker does. Everything that only a handler needs is left out: the
handler's source, the probes, and the containers that a user adds to the worker's pod. A changed rate needs a new Job,
because the rate is in a mounted file and the pod template of a Job is immutable.
"""

from collections.abc import Mapping
from typing import Any, Final

from fleet_consumer.contract import failure_reasons, naming
from fleet_consumer.contract.pod import EXIT_SETTINGS, REDRIVE_CONFIG, REDRIVE_FILE
from fleet_consumer.contract.redrive_config import VERSION
from fleet_operator.api.v1alpha1.consumergroup import ConsumerGroup
from fleet_operator.api.v1alpha1.kafkacluster import KafkaCluster
from fleet_operator.api.v1alpha1.redrive import Redrive
from fleet_operator.planning import times
from fleet_operator.planning.fleet.pod_template import files_of
from fleet_operator.planning.fleet.worker_config import worker_config
from fleet_operator.planning.labels import CONTAINER, RATE_ANNOTATION
from fleet_operator.planning.objects import to_json
from fleet_operator.planning.redrive.phase import Target
from fleet_operator.planning.run import rate_text, run_config_map, run_head, run_pod

COMPONENT: Final = "redrive"

BACKOFF_LIMIT: Final = 10
"""Number of times that the Job's pod is retried. The pauses between the retries grow from 10 s to 6 minutes, so a Job
survives an outage of about half an hour."""
TTL_S: Final = 86_400
"""Seconds for which a finished Job is kept for its logs. The Redrive's status is kept until the Redrive is deleted."""


CLOCKS_S: Final = 300.0
"""Seconds added to the end of a Redrive's time range, because the brokers' clocks may be ahead of the operator's clock.
Without these seconds, records that failed just before the first start might be left out."""


def redrive_config(
    redrive: Redrive, group: ConsumerGroup, cluster: KafkaCluster, target: Target, *, run_id: str, now: float
) -> dict[str, Any]:
    """Build the content of `redrive.json`; times are epoch milliseconds. `run_id` is the same for all Jobs of a run."""
    spec, metadata = redrive.spec, redrive.metadata
    chosen, worker = spec.filter, worker_config(group, cluster)
    return {
        "version": VERSION,
        "id": run_id,
        "name": metadata.name,
        "namespace": metadata.namespace,
        "groupId": group.group_id,
        # `producer` is optional in a worker's settings.
        **{name: worker[name] for name in ("connection", "producer") if name in worker},
        "filter": {
            "reasons": [failure_reasons.from_api(word).value for word in chosen.reasons] if chosen else [],
            "errorRegex": chosen.error_regex if chosen else None,
            "keyRegex": chosen.key_regex if chosen else None,
            "fromTime": _milliseconds(chosen.from_time if chosen else None),
            "toTime": _end(redrive, target, now),
            # The field is left out if it is empty, because an image that the group sets may not know the field.
            **({"records": [place.model_dump() for place in spec.records]} if spec.records else {}),
        },
        "recordsPerSecond": redrive.rate,
        "maxRecords": spec.max_records,
        "dryRun": spec.dry_run,
        "maxRedrives": spec.max_redrives,
        "partitions": target.partitions,
        "maxMessageBytes": target.max_message_bytes,
        "log": group.spec.log.model_dump(),
    }


def config_map(redrive: Redrive, config: Mapping[str, Any]) -> dict[str, Any]:
    """Build the ConfigMap that the Job's pods mount. Its content changes only while no run is active."""
    return run_config_map(redrive, naming.redrive_job(redrive.metadata.name), {REDRIVE_FILE: to_json(config)})


def job(redrive: Redrive, group: ConsumerGroup, cluster: KafkaCluster, *, image: str) -> dict[str, Any]:
    """Build the Job of one run at one rate; `image` is the group's worker image."""
    head = run_head("batch/v1", "Job", redrive, naming.redrive_job(redrive.metadata.name))
    head["metadata"]["annotations"] = {RATE_ANNOTATION: rate_text(redrive.rate)}
    command = ["redrive", "--config", REDRIVE_CONFIG]
    template, worker, sources = run_pod(redrive, group, cluster, COMPONENT, command, image=image)
    sources.insert(0, files_of("configMap", head["metadata"]["name"], [(REDRIVE_FILE, REDRIVE_FILE)]))
    template["spec"].pop("initContainers", None)
    template["spec"] |= {"containers": [worker], "restartPolicy": "Never"}
    return {
        **head,
        "spec": {
            "completions": 1,
            "parallelism": 1,
            "backoffLimit": BACKOFF_LIMIT,
            "ttlSecondsAfterFinished": TTL_S,
            # If a pod started before the previous pod has ended, it would not see the previous pod's last moves in the
            # committed metadata.
            "podReplacementPolicy": "Failed",
            "podFailurePolicy": {
                "rules": [
                    {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
                    # A retry cannot help with wrong settings; any other failure is retried.
                    {
                        "action": "FailJob",
                        "onExitCodes": {"containerName": CONTAINER, "operator": "In", "values": [EXIT_SETTINGS]},
                    },
                ]
            },
            "template": template,
        },
    }


def _end(redrive: Redrive, target: Target, now: float) -> int | None:
    """The end of a run's time range in epoch milliseconds; None for no end.

    The end is the same each time the run is started, so records that fail later are not included. The first start also
    commits end offsets to Kafka, but they are not enough: brokers delete the commits of a group without members. This
    may happen while a Redrive is suspended for a long time, or before a slow Redrive reaches a partition."""
    chosen = redrive.spec.filter
    wanted = _milliseconds(chosen.to_time if chosen else None)
    if not target.append_times:
        return wanted
    started = times.from_text(redrive.status.get("startedAt"))
    end = round(((now if started is None else started) + CLOCKS_S) * 1000)
    return end if wanted is None else min(wanted, end)


def _milliseconds(text: str | None) -> int | None:
    at = times.from_text(text)
    return None if at is None else round(at * 1000)
