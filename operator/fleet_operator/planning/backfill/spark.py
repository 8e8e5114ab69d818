"""SparkApplications (`sparkoperator.k8s.io/v1beta2`), which the kubeflow Spark operator runs. Pure.

An application is created once and never edited, because the Spark operator runs an edited application again. The
`suspend` field of a SparkApplication is not used, because a resumed application starts from the beginning. An
application is cancelled by deletion; the Spark operator and owner references then remove its pods.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

from kubernetes.utils.quantity import parse_quantity

SPARK_VERSION: Final = "4.0.0"
DRIVER_PROGRAM: Final = "local:///opt/fleet/backfill.py"
"""Path of the driver program in Consumer Fleet's Spark image."""
DRIVER_CONTAINER: Final = "spark-kubernetes-driver"
EXECUTOR_CONTAINER: Final = "spark-kubernetes-executor"
MESSAGE_CHARACTERS_MAX: Final = 512
SEEN_CHARACTERS_MAX: Final = 4096
LOG_CHARACTERS_MAX: Final = 256 * 1024
"""Maximum length of the message that is searched for errors. Spark's messages may contain the whole log of a
process."""
NOT_SUBMITTED: Final = "failed to submit spark application"
"""Start of an application's error message if its driver could not be created."""
ERROR_LINE: Final = re.compile(r'^(?:Exception in thread "[^"\n]*"|Caused by:) (.+)$', re.MULTILINE)


MIB: Final = 2**20


def spark_memory(quantity: str) -> str:
    """Convert a Kubernetes quantity to a Spark memory size, in which `m` means MiB; rounded up."""
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
        """True if no driver of the application runs now or will run later."""
        return self in (SparkState.ABSENT, SparkState.SUCCEEDED, SparkState.FAILED)


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenApplication:
    """An application as read from the API server. `taken`: a Spark operator has seen it. `submitted`: False if the
    Spark operator could not create the driver. `driver_pod`: empty while unknown."""

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
"""States that the Spark operator reports; only COMPLETED and FAILED are final. Unlisted states, such as
SUBMISSION_FAILED and SUSPENDED, count as UNKNOWN: an unlisted state changes to a listed state, or a deadline ends the
attempt."""


def read_application(body: Mapping[str, Any] | None) -> SeenApplication:
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
    """Return the errors in spark-submit's log, which the Spark operator reports as the message of a failed submission
    (11 KB). Return the whole log if no error is found."""
    found = ERROR_LINE.findall(log[:LOG_CHARACTERS_MAX])
    return f"spark-submit failed: {'; caused by '.join(each.strip() for each in found)}" if found else log
