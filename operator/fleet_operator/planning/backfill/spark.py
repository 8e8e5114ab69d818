"""Values between Backfills and whatever runs Spark: one application to render, and one as it is seen. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

from fleet_operator.api.v1alpha1.backfill import DriverSize, ExecutorSize

SPARK_VERSION: Final = "4.0.0"
DRIVER_PROGRAM: Final = "local:///opt/fleet/backfill.py"
"""The driver in Consumer Fleet's Spark image."""
DRIVER_CONTAINER: Final = "spark-kubernetes-driver"
EXECUTOR_CONTAINER: Final = "spark-kubernetes-executor"
MESSAGE_CHARACTERS_MAX: Final = 512
"""Spark's messages may have the log of a whole process."""


class SparkState(Enum):
    """State of an application, in words of no particular operator."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """One application to make. `metadata` has its name, namespace, labels and owner.

    `executors` is the number of pods, `executor_account` their service account. Templates are pod templates.
    """

    metadata: Mapping[str, Any]
    image: str
    pull_policy: str
    arguments: tuple[str, ...]
    conf: Mapping[str, str]
    driver: DriverSize
    driver_account: str
    driver_template: Mapping[str, Any]
    executor: ExecutorSize
    executors: int
    executor_account: str
    executor_template: Mapping[str, Any]
