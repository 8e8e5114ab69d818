"""Handlers of a Backfill: the one that serves the group, a candidate, and what was kept of both when it began."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fleet_consumer.contract import naming
from fleet_consumer.contract.pod import BACKFILL_FILE, WORKER_FILE
from fleet_consumer.contract.section import SettingsInvalid
from fleet_consumer.contract.worker_config import parse_config as parse_worker
from fleet_operator.api.v1alpha1 import Backfill, ConsumerGroup, KafkaCluster, conditions
from fleet_operator.clients.kinds import CONFIG_MAP, CONSUMER_GROUP, STATEFUL_SET, JsonObject
from fleet_operator.planning.backfill.config import Handlers
from fleet_operator.planning.fleet.blocking import SOURCE_FILES_MAX, find_source_problem
from fleet_operator.planning.fleet.parts import MAIN
from fleet_operator.planning.fleet.revision import plan_revision
from fleet_operator.planning.fleet.rollout_facts import RevisionState
from fleet_operator.planning.foreign_json import read_object
from fleet_operator.planning.labels import REVISION_ANNOTATION, STATE_ANNOTATION
from fleet_operator.planning.problem import Problem
from fleet_operator.reconcilers.context import Context, is_owned_by, read_child
from fleet_operator.reconcilers.references import read_source
from fleet_operator.runtime.store import Store


@dataclass(frozen=True, slots=True, kw_only=True)
class Frozen:
    """The settings of the first attempt, and file names of copied sources (None where an image has them)."""

    config: Mapping[str, Any]
    handler_keys: tuple[str, ...] | None = None
    candidate_keys: tuple[str, ...] | None = None


async def read_handlers(
    context: Context, backfill: Backfill, group: ConsumerGroup, cluster: KafkaCluster, image: str
) -> Handlers | Problem:
    """The handler of the revision that serves, else that of the spec, and the candidate. Raises KubeError."""
    handlers = await _serving(context, group, cluster, image) or await _of_spec(context.store, group, cluster, image)
    compare = backfill.spec.compare
    reference = compare.config_map_ref if compare is not None else None
    if isinstance(handlers, Problem) or reference is None or compare is None:
        return handlers
    files = await read_source(context.store, backfill.metadata.namespace, reference.name)
    if not files or len(files) > SOURCE_FILES_MAX:
        message = (
            f"ConfigMap {reference.name!r} with the candidate's source is not in namespace "
            f"{backfill.metadata.namespace!r}, or has no text, or more than {SOURCE_FILES_MAX} files: create it with "
            f"the module of {compare.callable!r}"
        )
        return Problem(conditions.CANDIDATE_SOURCE_NOT_FOUND, message)
    return Handlers(worker=handlers.worker, handler_files=handlers.handler_files, candidate_files=files)


async def _serving(context: Context, group: ConsumerGroup, cluster: KafkaCluster, image: str) -> Handlers | None:
    """The handler of the good revision that the workers run; None without one.

    Connection and policies are no part of a revision for a Backfill: they are those of now.
    """
    store, key = context.store, (group.metadata.namespace, group.metadata.name)
    owner = store.get(CONSUMER_GROUP, key)
    fleet = store.get(STATEFUL_SET, (key[0], MAIN.child(key[1])))
    if owner is None or fleet is None or not is_owned_by(fleet, owner):
        return None
    revision = (fleet["metadata"].get("annotations") or {}).get(REVISION_ANNOTATION, "")
    record = await read_child(store, owner, CONFIG_MAP, naming.revision_config(key[1], revision)) if revision else None
    if record is None or (record["metadata"].get("annotations") or {}).get(STATE_ANNOTATION) != RevisionState.GOOD:
        return None
    worker = read_object((record.get("data") or {}).get(WORKER_FILE))
    now = plan_revision(group, cluster, handler_files=None, image=image).worker_config
    worker = {**worker, **{name: now[name] for name in ("connection", "retry")}} if worker is not None else None
    try:
        python = parse_worker(worker).handler.python
    except SettingsInvalid:
        return None
    if worker is None or python is None or python.path is None:
        return Handlers(worker=worker or {})
    copy = await read_child(store, owner, CONFIG_MAP, naming.revision_handler(key[1], revision))
    return Handlers(worker=worker, handler_files=dict(copy.get("data") or {})) if copy is not None else None


async def _of_spec(store: Store, group: ConsumerGroup, cluster: KafkaCluster, image: str) -> Handlers | Problem:
    """The handler of the group's spec, of which no revision serves yet."""
    python = group.spec.handler.python
    reference = python.config_map_ref if python is not None else None
    files = None
    if reference is not None:
        files = await read_source(store, group.metadata.namespace, reference.name)
        problem = find_source_problem(group, files)
        if problem is not None:
            return problem
    planned = plan_revision(group, cluster, handler_files=files, image=image)
    return Handlers(worker=planned.worker_config, handler_files=files)


async def read_frozen(store: Store, owner: JsonObject, backfill: Backfill) -> Frozen | Problem:
    """The settings of the first attempt, for a further one. Raises KubeError."""
    name = backfill.metadata.name
    found = await _own(store, owner, naming.backfill_settings(name))
    config = read_object((found or {}).get("data", {}).get(BACKFILL_FILE))
    if config is None:
        return _lost(naming.backfill_settings(name))
    python = ((config.get("worker") or {}).get("handler") or {}).get("python") or {}
    candidate = (config.get("compare") or {}).get("candidate") or {}
    keys: list[tuple[str, ...] | None] = []
    for copy, needed in (
        (naming.backfill_handler(name), python.get("path")),
        (naming.backfill_candidate(name), candidate.get("path")),
    ):
        source = await _own(store, owner, copy) if needed else None
        if needed and source is None:
            return _lost(copy)
        keys.append(tuple(sorted(source.get("data") or {})) if source is not None else None)
    return Frozen(config=config, handler_keys=keys[0], candidate_keys=keys[1])


async def _own(store: Store, owner: JsonObject, name: str) -> JsonObject | None:
    found = await store.kube.get(CONFIG_MAP, owner["metadata"]["namespace"], name)
    return found if found is not None and is_owned_by(found, owner) else None


def _lost(name: str) -> Problem:
    message = (
        f"ConfigMap {name!r}, which the first attempt was given, is gone, and records of one Backfill are handled "
        "alike: create another Backfill for the rest of the range"
    )
    return Problem(conditions.SETTINGS_LOST, message)
