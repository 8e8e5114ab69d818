"""Parts of a fleet: main and retry workers, each with its own StatefulSet and its own number of workers."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final

from fleet_consumer.contract import naming
from fleet_operator.planning import labels
from fleet_operator.planning.fleet.parsing import read_fleet, read_pod
from fleet_operator.planning.fleet.rollout_facts import FleetFacts, PodFacts


@dataclass(frozen=True, slots=True)
class Part:
    """A set of workers of one fleet. `component`: the value of its component label. `child`: maps the ConsumerGroup's
    name to the common name of the StatefulSet, headless Service and PodDisruptionBudget. `kafka_group`: maps the main
    workers' Kafka group id to the Kafka group id of this part."""

    component: str
    child: Callable[[str], str]
    kafka_group: Callable[[str], str]

    def selector(self, name: str) -> dict[str, str]:
        """Labels that only this part's workers have. These labels must never change, because a StatefulSet's selector
        is immutable."""
        return {labels.GROUP_LABEL: name, labels.COMPONENT_LABEL: self.component}


MAIN: Final = Part(labels.WORKER, naming.main_workers, lambda group_id: group_id)
RETRY: Final = Part(labels.RETRY, naming.retry_workers, naming.retry_group)


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetPart:
    """The present state of one part. `fleet`: None if the StatefulSet (`body`) does not exist or is being deleted."""

    part: Part
    body: dict[str, Any] | None = None
    pods: tuple[dict[str, Any], ...] = ()
    fleet: FleetFacts | None = None
    workers: tuple[PodFacts, ...] = ()


def read_part(part: Part, body: dict[str, Any] | None, pods: Iterable[dict[str, Any]], now: float) -> FleetPart:
    pods = tuple(pods)
    workers = tuple(read_pod(pod, now) for pod in pods)
    return FleetPart(part=part, body=body, pods=pods, fleet=read_fleet(body), workers=workers)


@dataclass(frozen=True, slots=True, kw_only=True)
class PartPlan:
    """The plan for one part: `replicas` workers at revision `target`.

    - `target`: if None, an existing StatefulSet stays as it is, and no StatefulSet is created.
    - `remove`: delete the part's children.
    - `delete_pods`: unready pods of refused revisions, to be deleted.
    - `event`: reason and note of the Event about the change.
    """

    part: Part
    target: str | None = None
    replicas: int = 0
    remove: bool = False
    delete_pods: tuple[str, ...] = ()
    event: tuple[str, str] | None = None
