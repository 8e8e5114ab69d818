"""Parts of a fleet: the main workers and the retry workers, each with a StatefulSet and a count of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final

from fleet_consumer.contract import naming
from fleet_operator.planning import labels
from fleet_operator.planning.fleet.readings import read_fleet, read_pod
from fleet_operator.planning.fleet.rollout_facts import FleetFacts, PodFacts


@dataclass(frozen=True, slots=True)
class Part:
    """A set of workers of one fleet: its component label, the name that its StatefulSet, headless Service and
    PodDisruptionBudget share, and its Kafka group."""

    component: str
    child: Callable[[str], str]
    kafka_group: Callable[[str], str]

    def selector(self, name: str) -> dict[str, str]:
        """Selector of exactly this part's workers. A StatefulSet's selector is immutable."""
        return {labels.GROUP_LABEL: name, labels.COMPONENT_LABEL: self.component}


MAIN: Final = Part(labels.WORKER, naming.main_workers, lambda group_id: group_id)
RETRY: Final = Part(labels.RETRY, naming.retry_workers, naming.retry_group)


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetPart:
    """One part as found: `body` and `fleet` are its StatefulSet, `pods` and `workers` its pods, as objects and as
    facts.

    `fleet` is None without a StatefulSet, and for one that is being deleted.
    """

    part: Part
    body: dict[str, Any] | None = None
    pods: tuple[dict[str, Any], ...] = ()
    fleet: FleetFacts | None = None
    workers: tuple[PodFacts, ...] = ()


def read_part(part: Part, body: dict[str, Any] | None, pods: Iterable[dict[str, Any]], now: float) -> FleetPart:
    """A part with its facts; `now` in epoch seconds."""
    pods = tuple(pods)
    workers = tuple(read_pod(pod, now) for pod in pods)
    return FleetPart(part=part, body=body, pods=pods, fleet=read_fleet(body), workers=workers)


@dataclass(frozen=True, slots=True, kw_only=True)
class PartPlan:
    """The wanted workers of one part: `replicas` of them at revision `target`.

    A `target` of None leaves the StatefulSet as it is and makes none; `remove` deletes the part's children.
    `delete_pods` names unready pods of refused revisions. `event` is the reason and the note of the Event about the
    change.
    """

    part: Part
    target: str | None = None
    replicas: int = 0
    remove: bool = False
    delete_pods: tuple[str, ...] = ()
    event: tuple[str, str] | None = None
