"""Builders of a Redrive's children: its Job, and the ConfigMap with the Job's settings.

The Job's pod is the worker's pod with another command: same image, account, credentials, placement and environment, so
what reaches the brokers from a worker reaches them from here. What belongs to handling records stays out: the
handler's source, probes, and the containers that a user adds to the worker's pod.
"""

from __future__ import annotations

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
from fleet_operator.planning.fleet.worker_config import log_config, worker_config
from fleet_operator.planning.labels import CONTAINER, RATE_ANNOTATION
from fleet_operator.planning.objects import to_json
from fleet_operator.planning.redrive.phase import Target
from fleet_operator.planning.run import rate_text, run_config_map, run_head, run_pod

COMPONENT: Final = "redrive"

BACKOFF_LIMIT: Final = 10
"""Tries after failures from outside, 10 s apart at first and 6 minutes at last: about half an hour of outage."""
TTL_S: Final = 86_400
"""Time for which a finished Job and its logs are kept; the Redrive's own status is kept as long as the object."""


CLOCKS_S: Final = 300.0
"""The most by which the brokers' clocks may be ahead of the operator's: no record that failed before the first start is
left out for that."""


def redrive_config(
    redrive: Redrive, group: ConsumerGroup, cluster: KafkaCluster, target: Target, *, run_id: str, now: float
) -> dict[str, Any]:
    """The content of `redrive.json`, which `fleet-consumer redrive` reads. Times are epoch milliseconds; `run_id` is
    the same for all Jobs of a run."""
    spec, metadata = redrive.spec, redrive.metadata
    chosen, worker = spec.filter, worker_config(group, cluster, revision="")
    return {
        "version": VERSION,
        "id": run_id,
        "name": metadata.name,
        "namespace": metadata.namespace,
        "groupId": group.group_id,
        # Of these, those that a worker's file has: `producer` is not in all.
        **{name: worker[name] for name in ("connection", "producer") if name in worker},
        "filter": {
            "reasons": [failure_reasons.from_api(word).value for word in chosen.reasons] if chosen else [],
            "errorRegex": chosen.error_regex if chosen else None,
            "keyRegex": chosen.key_regex if chosen else None,
            "fromTime": _milliseconds(chosen.from_time if chosen else None),
            "toTime": _end(redrive, target, now),
            # Left out where nothing is named: a group's own image may be of a version that does not know it.
            **({"records": [place.model_dump() for place in spec.records]} if spec.records else {}),
        },
        "recordsPerSecond": redrive.rate,
        "maxRecords": spec.max_records,
        "dryRun": spec.dry_run,
        "maxRedrives": spec.max_redrives,
        "partitions": target.partitions,
        "maxMessageBytes": target.max_message_bytes,
        "log": log_config(group),
    }


def config_map(redrive: Redrive, config: Mapping[str, Any]) -> dict[str, Any]:
    """The ConfigMap that the Job's pods mount. Changed only while no run is under way."""
    return run_config_map(redrive, naming.redrive_job(redrive.metadata.name), {REDRIVE_FILE: to_json(config)})


def job(redrive: Redrive, group: ConsumerGroup, cluster: KafkaCluster, *, image: str) -> dict[str, Any]:
    """The Job of one run at one rate; `image` is the group's worker image."""
    head = run_head("batch/v1", "Job", redrive, naming.redrive_job(redrive.metadata.name))
    head["metadata"]["annotations"] = {RATE_ANNOTATION: rate_text(redrive.rate)}
    return {
        **head,
        "spec": {
            "completions": 1,
            "parallelism": 1,
            "backoffLimit": BACKOFF_LIMIT,
            "ttlSecondsAfterFinished": TTL_S,
            # A run whose predecessor is still ending would not see in the ledger what that one moves last.
            "podReplacementPolicy": "Failed",
            "podFailurePolicy": {
                "rules": [
                    {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
                    # With wrong settings trying again changes nothing. Any other failure is tried again.
                    {
                        "action": "FailJob",
                        "onExitCodes": {"containerName": CONTAINER, "operator": "In", "values": [EXIT_SETTINGS]},
                    },
                ]
            },
            "template": _pod_template(redrive, group, cluster, image=image),
        },
    }


def _pod_template(redrive: Redrive, group: ConsumerGroup, cluster: KafkaCluster, *, image: str) -> dict[str, Any]:
    command = ["redrive", "--config", REDRIVE_CONFIG]
    template, worker, sources = run_pod(redrive, group, cluster, COMPONENT, command, image=image)
    own = naming.redrive_job(redrive.metadata.name)
    sources.insert(0, files_of("configMap", own, [(REDRIVE_FILE, REDRIVE_FILE)]))
    template["spec"].pop("initContainers", None)
    template["spec"] |= {"containers": [worker], "restartPolicy": "Never"}
    return template


def _end(redrive: Redrive, target: Target, now: float) -> int | None:
    """The end of the run in time, which is the same at all of its starts.

    A start notes the ends of the partitions in Kafka, and a later one takes them from there. But Kafka forgets commits
    of a group without members: of a Redrive that is suspended for long, and of a partition that a slow one does not
    come to. Records that failed in the meantime are not of this run.
    """
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
