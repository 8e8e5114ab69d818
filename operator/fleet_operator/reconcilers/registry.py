"""Registers all watched kinds. Caches, watches, queues, routing, sweeps and wiring are built from these registrations.

A new custom resource needs a `Controller` here and a reconciler; a new kind of children needs a `WatchedKind`. When an
object changes, its kind's function `dependents` yields the objects to queue. The chart grants the permissions.
Decision: docs/decisions/0032-shared-contract.md.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Protocol

from fleet_operator.api.v1alpha1 import refs
from fleet_operator.clients import kinds
from fleet_operator.clients.kinds import View
from fleet_operator.planning.labels import GROUP_LABEL, REDRIVE_LABEL
from fleet_operator.planning.retry.intent import read_policy
from fleet_operator.planning.trimming import trim_config_map, trim_job, trim_pod, trim_resource, trim_stateful_set
from fleet_operator.reconcilers import routing
from fleet_operator.reconcilers.backfill.reconciler import Backfills
from fleet_operator.reconcilers.claims import claimant_of, had_retries
from fleet_operator.reconcilers.consumergroup.reconciler import ConsumerGroupReconciler
from fleet_operator.reconcilers.context import Context
from fleet_operator.reconcilers.kafkacluster import KafkaClusterReconciler
from fleet_operator.reconcilers.offsetreset import OffsetResets
from fleet_operator.reconcilers.redrive import Redrives
from fleet_operator.reconcilers.retrypolicy import RetryPolicyReconciler
from fleet_operator.reconcilers.run import RunKind, RunReconciler
from fleet_operator.reconcilers.run_memory import outline_of, summary_of_run
from fleet_operator.runtime.cache import Key, WatchedKind


class Reconciler(Protocol):
    async def reconcile(self, key: Key) -> float | None:
        """Carry out one step for one object. Returns the seconds until its next reconcile, or None. Raises KubeError;
        the caller retries."""


@dataclass(frozen=True, slots=True)
class Controller:
    """Registration of a kind with its own queue and reconciler.

    `make` builds the reconciler. It also registers the reconciler's resources in `Context.ending`, so that they are
    closed when the operator stops.
    """

    watched: WatchedKind
    make: Callable[[Context], Reconciler]

    @property
    def kind(self) -> kinds.Kind:
        return self.watched.kind


def _runs(kind: Callable[[Context], RunKind[Any, Any, Any]]) -> Callable[[Context], Reconciler]:
    return lambda context: RunReconciler(context, kind(context))


_own: Final = partial(WatchedKind, view=View(trim_resource))
CONTROLLERS: Final = (
    Controller(_own(kind=kinds.KAFKA_CLUSTER, dependents=routing.groups_that_refer), KafkaClusterReconciler),
    Controller(
        _own(
            kind=kinds.CONSUMER_GROUP,
            index=refs.group_id_of,
            references=routing.references_of_group,
            summary=claimant_of,
            dependents=routing.dependents_of_group,
        ),
        ConsumerGroupReconciler,
    ),
    Controller(
        _own(
            kind=kinds.RETRY_POLICY,
            index=lambda body: body["metadata"]["namespace"],
            summary=read_policy,
            dependents=routing.groups_that_refer,
        ),
        RetryPolicyReconciler,
    ),
    Controller(_own(kind=kinds.REDRIVE, index=refs.group_of, summary=summary_of_run, apart=True), _runs(Redrives)),
    Controller(_own(kind=kinds.BACKFILL, index=refs.group_of, apart=True), _runs(Backfills)),
    Controller(
        _own(kind=kinds.OFFSET_RESET, index=refs.group_of, summary=summary_of_run, dependents=routing.group_of_run),
        _runs(OffsetResets),
    ),
)


def _summary_of_state(state: kinds.JsonObject) -> object:
    """Summarize an OperatorState: for a run, its outline; for a ConsumerGroup, True if it has had retries."""
    kind = state["metadata"]["name"].rpartition(".")[2]
    return outline_of(state) if kind in {run.kind.lower() for run in routing.RUNS} else had_retries(state)


_child: Final = partial(WatchedKind, index=routing.group_index, dependents=routing.owner_of_child, on_status=True)
OWNED: Final = (
    _child(kind=kinds.STATEFUL_SET, selector=GROUP_LABEL, view=View(trim_stateful_set)),
    _child(kind=kinds.JOB, selector=REDRIVE_LABEL, view=View(trim_job)),
    _child(kind=kinds.POD, selector=GROUP_LABEL, view=View(trim_pod)),
    WatchedKind(kind=kinds.OPERATOR_STATE, summary=_summary_of_state, dependents=routing.owner_of_state),
    WatchedKind(
        kind=kinds.CONFIG_MAP,
        selector=routing.HANDLER_SELECTOR,
        view=View(trim_config_map, metadata_only=True),
        index=routing.record_index,
        dependents=routing.dependents_of_config_map,
        on_status=True,
    ),
)

WATCHED: Final = (*(controller.watched for controller in CONTROLLERS), *OWNED)
