"""SparkApplications (`sparkoperator.k8s.io/v1beta2`), which the kubeflow Spark operator runs. Pure.

An application is created once and never edited: the Spark operator answers an edit with a second run, and its own
`suspend` starts over. To cancel one is to delete its object; the operator and owner references remove its pods.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

from kubernetes.utils.quantity import parse_quantity

SPARK_VERSION: Final = "4.0.0"
DRIVER_PROGRAM: Final = "local:///opt/fleet/backfill.py"
"""The driver in Consumer Fleet's Spark image."""
DRIVER_CONTAINER: Final = "spark-kubernetes-driver"
EXECUTOR_CONTAINER: Final = "spark-kubernetes-executor"
MESSAGE_CHARACTERS_MAX: Final = 512
SEEN_CHARACTERS_MAX: Final = 4096
LOG_CHARACTERS_MAX: Final = 256 * 1024
"""Spark's messages may have the log of a whole process."""
NOT_SUBMITTED: Final = "failed to submit spark application"
"""Beginning of the message of an application whose driver could not be made."""
ERROR_LINE: Final = re.compile(r'^(?:Exception in thread "[^"\n]*"|Caused by:) (.+)$', re.MULTILINE)


MIB: Final = 2**20


def spark_memory(quantity: str) -> str:
    """A quantity of Kubernetes as Spark reads sizes of memory, where `m` is MiB; rounded up."""
    size = parse_quantity(quantity)  # type: ignore[no-untyped-call]
    return f"{math.ceil(size / MIB)}m"


class SparkState(Enum):
    ABSENT = "Absent"
    SUBMITTED = "Submitted"
    RUNNING = "Running"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"
    UNKNOWN = "Unknown"

    @property
    def over(self) -> bool:
        """True if no driver will run any more."""
        return self in (SparkState.ABSENT, SparkState.SUCCEEDED, SparkState.FAILED)


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenApplication:
    """An application as found. `taken`: an operator for Spark has seen it; `submitted` is false where it could not make
    the driver. `driver_pod` is empty while not known."""

    state: SparkState
    message: str = ""
    submitted: bool = True
    driver_pod: str = ""
    uid: str = ""
    taken: bool = False
    deleting: bool = False


NO_APPLICATION: Final = SeenApplication(state=SparkState.ABSENT)


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


def read_application(body: Mapping[str, Any] | None) -> SeenApplication:
    """An object as found; None if there is none."""
    if body is None:
        return NO_APPLICATION
    status = body.get("status") or {}
    state = status.get("applicationState") or {}
    said = str(state.get("errorMessage") or "")
    submitted = not said.startswith(NOT_SUBMITTED)
    return SeenApplication(
        state=STATES.get(str(state.get("state") or ""), SparkState.UNKNOWN),
        message=(said if submitted else _errors(said))[:SEEN_CHARACTERS_MAX],
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
