"""The stored state of runs, which decisions use instead of the status.

The state is stored in the run's own OperatorState. The end of a run is also stored in its ConsumerGroup's
OperatorState, which remains when the run's object is deleted. Both OperatorStates are read live before an irreversible
action. Decision: docs/decisions/0054-run-memory.md.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Any, Final, NamedTuple, TypeVar

from fleet_operator.api.v1alpha1.conditions import STATE_UNREADABLE
from fleet_operator.api.v1alpha1.model import FINAL_PHASES, RunResource
from fleet_operator.clients.kinds import CONSUMER_GROUP, OPERATOR_STATE, JsonObject, Kind
from fleet_operator.clients.kube import KubeConflictError
from fleet_operator.planning import times
from fleet_operator.planning.run import LASTING_PHASES, RunDecision
from fleet_operator.planning.state.document import UnreadableStateError, read_state
from fleet_operator.planning.state.runs import (
    MESSAGE_CHARACTERS_MAX,
    RunEntry,
    RunsState,
    RunState,
    digest_of,
    entry_of,
)
from fleet_operator.reconcilers.context import Context
from fleet_operator.reconcilers.routing import RUNS
from fleet_operator.reconcilers.states import state_name
from fleet_operator.runtime.cache import Key

R = TypeVar("R", bound=RunResource)


class RunMemory:
    """Reads and writes the stored state of all runs of one kind. `remembered`: names of the status fields on which
    decisions depend. `counted`: names of further status fields, which are stored when a run ends."""

    def __init__(self, context: Context, remembered: Collection[str], counted: Collection[str]) -> None:
        self._context = context
        self._remembered = frozenset(remembered)
        self._known = self._remembered.union(counted, ("conditions",))

    def recall(self, body: JsonObject, run: R) -> tuple[R, RunState, RunState]:
        """Return the run, its effective state, and its state as stored. Raises UnreadableStateError.

        In the returned run, stored fields replace those of the status. The effective state is the stored state; if only
        the group's state shows that the run has ended, it includes this end.
        """
        state = stored = self._context.states.read(body, RunState)
        if state.digest != digest_of(run):
            state = RunState()  # the state was stored for a namesake with a different spec
        entry = find_entry(self._context, run)
        # If a failed run is retried, the group's state has the earlier failure until the run ends again.
        if not state.is_final and entry is not None and entry.is_final and state.retries <= entry.retries:
            facts = {**state.facts, "phase": entry.phase, "finishedAt": entry.at}
            state = replace(state, facts=facts, reason=entry.reason, message=entry.message)
        # The state of an ended run has all the fields of its status.
        status = {} if "conditions" in state.facts else run.status
        shown = {name: value for name, value in status.items() if name not in self._remembered}
        known = {name: value for name, value in state.facts.items() if name in self._known}
        return run.model_copy(update={"status": {**shown, **known}}), state, stored

    def pick(self, status: JsonObject, decision: RunDecision) -> JsonObject:
        names = self._known if decision.is_final else self._remembered
        return {name: value for name, value in status.items() if name in names}

    async def refresh(self, body: JsonObject, group: Key) -> None:
        """Read live the states of a run and of its group, on which decisions about the run depend. Raises KubeError."""
        owner = self._context.store.get(CONSUMER_GROUP, group)
        for each in (body, *([owner] if owner is not None else ())):
            await self._context.states.refresh(each)

    async def record(
        self, body: JsonObject, run: RunResource, facts: Mapping[str, Any], decision: RunDecision, before: RunState
    ) -> None:
        """Store a run's progress before its status is written; `before`: the stored state that the decision used.
        Raises KubeError and StateTakenError."""
        reason, message = (decision.reason, decision.message) if decision.is_final else ("", "")
        state = RunState(digest=digest_of(run), facts=facts, reason=reason, message=message)
        if state != before or not self._context.states.is_own(body):
            await self._context.states.save(body, state, before=before)
        if decision.phase in LASTING_PHASES:
            await self._record_entry(run, state)

    async def keep_end(self, body: JsonObject, run: RunResource, state: RunState, *, leaves: bool = False) -> None:
        """Store the end of a run in the run's own state and in the group's state, unless both have it. Raises KubeError
        and StateTakenError.

        If the group's state is full, the end is not stored there, except with `leaves`: then the run and its own state
        are about to be deleted.
        """
        if not self._context.states.is_own(body):
            stored = self._context.states.read(body, RunState)
            await self._context.states.save(body, replace(state, digest=digest_of(run)), before=stored)
        group = self._context.store.get(CONSUMER_GROUP, run.group_key)
        if group is None or state.facts["phase"] not in LASTING_PHASES:
            return
        known = self._context.states.read(group, RunsState)
        if leaves or not known.is_full(run, self._lives_in(run.group_key)):
            await self._record_entry(run, state)

    def _lives_in(self, group: Key) -> Callable[[RunEntry], bool]:
        """Return a function that returns True if the run of an entry in a group's state still exists.

        The function is called once for each entry. A search in the other direction, through all runs of the group,
        would be too slow: there may be thousands of runs.
        """
        caches = {kind.kind: self._context.store.cache(kind) for kind in RUNS}

        def lives(entry: RunEntry) -> bool:
            cache = caches.get(entry.kind)
            return cache is not None and cache.has((group[0], entry.name), group)

        return lives

    async def _record_entry(self, run: RunResource, state: RunState) -> None:
        """Store the phase of a run in the state of its group, if the group exists. Raises KubeConflictError if another
        process has ended the run."""
        store, key = self._context.store, run.group_key
        group = store.get(CONSUMER_GROUP, key)
        if group is None or "deletionTimestamp" in group["metadata"]:
            return
        known, phase = self._context.states.read(group, RunsState), state.facts["phase"]
        found = known.find(run)
        if found is not None and (found.phase, found.retries) == (phase, state.retries):
            return
        if found is not None and found.is_final and phase not in FINAL_PHASES:
            raise KubeConflictError(f"{found.kind} {found.name} was ended by another process", status=409)
        at = str(state.facts.get("finishedAt") or times.to_text(self._context.clock.wall()))
        message = state.message[:MESSAGE_CHARACTERS_MAX]
        entry = replace(entry_of(run, phase=phase), reason=state.reason, message=message, at=at, retries=state.retries)
        await self._context.states.save(group, known.with_entry(entry, self._lives_in(key)), before=known)


def find_entry(context: Context, run: RunResource) -> RunEntry | None:
    """The entry of a run in the state of its group, or None. Raises UnreadableStateError."""
    group = context.store.get(CONSUMER_GROUP, run.group_key)
    return None if group is None else context.states.read(group, RunsState).find(run)


class RunSummary(NamedTuple):
    """Facts about a run that determine the order of a group's runs. The oldest run sorts first."""

    created: str
    name: str
    suspended: bool
    dry_run: bool
    deleting: bool


def summary_of_run(body: JsonObject) -> RunSummary:
    metadata, spec = body["metadata"], body["spec"]
    return RunSummary(
        created=metadata.get("creationTimestamp") or "",
        name=metadata["name"],
        suspended=bool(spec.get("suspend")),
        dry_run=bool(spec.get("dryRun")),
        deleting="deletionTimestamp" in metadata,
    )


OUTLINE: Final = ("phase", "reason", "message", "finishedAt", "failedTopicId", "redrivenTo")


def outline_of(state: JsonObject) -> Mapping[str, Any]:
    """The facts in a run's OperatorState that other runs of its group need, or the reason why the state is
    unreadable."""
    content = state.get("data")
    try:
        known = read_state(RunState, content if isinstance(content, dict) else {}, state["metadata"]["name"]).facts
    except UnreadableStateError as error:
        return {"phase": "Unknown", "reason": error.problem.reason, "message": error.problem.message}
    return {name: known[name] for name in OUTLINE if isinstance(known.get(name), str | int)}


def runs_of(context: Context, kind: Kind, group: Key) -> list[tuple[RunSummary, Mapping[str, Any]]]:
    """A group's runs of one kind, the oldest first, each with the outline of its state. Only cached summaries are read,
    because anybody may create any number of runs, and each reconcile iterates over all of them."""
    states, found = context.store.cache(OPERATOR_STATE), context.store.cache(kind).summaries_having(group)
    known = [(run, states.summary_of((key[0], state_name(kind, key[1]))) or {}) for key, run in found]
    unreadable = [place for place, (_, outline) in enumerate(known) if outline.get("reason") == STATE_UNREADABLE]
    ends = _ends_by_name(context, kind, group) if unreadable else {}
    for place in unreadable:
        run, outline = known[place]
        known[place] = run, ends.get(run.name, outline)
    return sorted(known, key=lambda each: each[0])


def _ends_by_name(context: Context, kind: Kind, group: Key) -> dict[str, Mapping[str, Any]]:
    """Outlines of the runs of one kind whose end is in the state of their group, keyed by the run's name."""
    body = context.store.get(CONSUMER_GROUP, group)
    entries = context.states.read(body, RunsState).runs if body is not None else ()
    return {each.name: {"phase": each.phase} for each in entries if each.kind == kind.kind and each.is_final}
