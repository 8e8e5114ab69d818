"""SparkApplications (`sparkoperator.k8s.io/v1beta2`), which the kubeflow Spark operator runs.

An application is created once and never edited: the Spark operator answers an edit with a second run, and its own
`suspend` starts over. To cancel one is to delete its object; the operator and owner references remove its pods.
"""

from __future__ import annotations

import re
from typing import Final

from fleet_operator.clients.kinds import SPARK_APPLICATION, JsonObject
from fleet_operator.planning.backfill.spark import (
    DRIVER_PROGRAM,
    NO_APPLICATION,
    SPARK_VERSION,
    Launch,
    SeenApplication,
    SparkState,
)

KEPT_SECONDS: Final = 86_400
"""Time for which a finished application and its pods' logs are kept; the Backfill's own status stays."""
MESSAGE_CHARACTERS_MAX: Final = 4096
LOG_CHARACTERS_MAX: Final = 256 * 1024
NOT_SUBMITTED: Final = "failed to submit spark application"
"""Beginning of the message of an application whose driver could not be made."""
ERROR_LINE: Final = re.compile(r'^(?:Exception in thread "[^"\n]*"|Caused by:) (.+)$', re.MULTILINE)


def render(launch: Launch) -> JsonObject:
    """The object that runs an application once. Pod settings go by pod templates, which need no webhook."""
    driver, executor = launch.driver, launch.executor
    return {
        "apiVersion": SPARK_APPLICATION.api_version,
        "kind": SPARK_APPLICATION.kind,
        "metadata": dict(launch.metadata),
        "spec": {
            "type": "Python",
            "pythonVersion": "3",
            "mode": "cluster",
            "sparkVersion": SPARK_VERSION,
            "image": launch.image,
            "imagePullPolicy": launch.pull_policy,
            "mainApplicationFile": DRIVER_PROGRAM,
            "arguments": list(launch.arguments),
            "restartPolicy": {"type": "Never"},
            "timeToLiveSeconds": KEPT_SECONDS,
            "sparkConf": dict(launch.conf),
            "driver": {
                "cores": driver.cores,
                "coreRequest": driver.core_request,
                "memory": driver.memory,
                "memoryOverhead": driver.memory_overhead,
                "serviceAccount": launch.driver_account,
                "template": launch.driver_template,
            },
            "executor": {
                "instances": launch.executors,
                "cores": executor.cores,
                "coreRequest": executor.core_request,
                "memory": executor.memory,
                "memoryOverhead": executor.memory_overhead,
                "serviceAccount": launch.executor_account,
                "template": launch.executor_template,
            },
        },
    }


def observe(body: JsonObject | None) -> SeenApplication:
    """An object as found; None if there is none."""
    if body is None:
        return NO_APPLICATION
    status = body.get("status") or {}
    state = status.get("applicationState") or {}
    said = str(state.get("errorMessage") or "")
    submitted = not said.startswith(NOT_SUBMITTED)
    return SeenApplication(
        state=STATES.get(str(state.get("state") or ""), SparkState.UNKNOWN),
        message=(said if submitted else _errors(said))[:MESSAGE_CHARACTERS_MAX],
        submitted=submitted,
        driver_pod=str((status.get("driverInfo") or {}).get("podName") or ""),
        uid=str(body["metadata"]["uid"]),
        taken=bool(status),
        deleting="deletionTimestamp" in body["metadata"],
    )


def _errors(log: str) -> str:
    """The errors in the log of spark-submit, which is the whole message of a failed submission, 11 KB; else the log."""
    found = ERROR_LINE.findall(log[:LOG_CHARACTERS_MAX])
    return f"spark-submit failed: {'; caused by '.join(each.strip() for each in found)}" if found else log


STATES: Final = {
    "": SparkState.SUBMITTED,
    "SUBMITTED": SparkState.SUBMITTED,
    "PENDING_RERUN": SparkState.SUBMITTED,
    "INVALIDATING": SparkState.SUBMITTED,
    "RESUMING": SparkState.SUBMITTED,
    "RUNNING": SparkState.RUNNING,
    "SUCCEEDING": SparkState.RUNNING,
    "FAILING": SparkState.RUNNING,
    "COMPLETED": SparkState.SUCCEEDED,
    "FAILED": SparkState.FAILED,
}
"""Terminal are COMPLETED and FAILED only. Others, such as SUBMISSION_FAILED, SUSPENDED and UNKNOWN, become one of these
or meet a deadline."""
