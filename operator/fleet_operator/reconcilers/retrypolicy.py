"""Reconciles RetryPolicies: stores the content of each under its hash in a ConfigMap, and publishes the status.

Fleets normally read a policy's content from the RetryPolicy. The stored content is used while the present content is
unusable. It also shows people which content a hash in the headers of a Kafka record refers to.
"""

import logging

from fleet_consumer.contract import naming
from fleet_operator.api.v1alpha1 import conditions
from fleet_operator.clients.kinds import CONFIG_MAP, CONSUMER_GROUP, RETRY_POLICY, JsonObject
from fleet_operator.clients.kube import KubeForbiddenError, KubeInvalidError
from fleet_operator.planning.labels import HASH_ANNOTATION, annotation_of
from fleet_operator.planning.problem import Problem
from fleet_operator.planning.retry.intent import PolicyRevision
from fleet_operator.planning.retry.records import policy_config_map, read_published
from fleet_operator.planning.state.document import UnreadableStateError
from fleet_operator.planning.state.group import PolicyState, RetriesState
from fleet_operator.planning.status.retry import project_retrypolicy_status
from fleet_operator.reconcilers.context import Context, ForeignObjectError, apply_owned, is_owned_by, publish
from fleet_operator.reconcilers.states import StateTakenError
from fleet_operator.runtime.cache import Key

log = logging.getLogger(__name__)


class RetryPolicyReconciler:
    def __init__(self, context: Context) -> None:
        self._context = context
        self._uids: dict[Key, str] = {}

    async def reconcile(self, key: Key) -> float | None:
        context = self._context
        body = context.store.get(RETRY_POLICY, key)
        if body is None or body["metadata"].get("deletionTimestamp"):
            context.statuses.drop_object(RETRY_POLICY.kind, key)
            context.states.drop_state(RETRY_POLICY, key)
            context.store.drop_owner(self._uids.pop(key, ""))
            return None
        self._uids[key] = body["metadata"]["uid"]
        outcome: PolicyRevision | Problem = context.store.cache(RETRY_POLICY).summary_of(key)
        usable = self._last_usable(body)
        if isinstance(outcome, PolicyRevision):
            outcome = await self._record(body, outcome)
        if isinstance(outcome, PolicyRevision):
            usable = outcome.hash
        previous = body.get("status") or {}
        referring = context.store.cache(CONSUMER_GROUP).keys_having((RETRY_POLICY, key))
        status = project_retrypolicy_status(
            outcome,
            generation=body["metadata"].get("generation", 0),
            groups=len(referring),
            previous=previous,
            now=context.clock.wall(),
        )
        again = await publish(context, body, status)
        if usable is not None:
            await self._prune(body, referring, {usable})
        return again

    def _last_usable(self, body: JsonObject) -> str | None:
        """The hash of the last usable content; None without such content, or if the state cannot be read."""
        try:
            return self._context.states.read(body, PolicyState).revision
        except UnreadableStateError as error:
            log.warning("%s", error)
            return None

    async def _record(self, body: JsonObject, revision: PolicyRevision) -> PolicyRevision | Problem:
        """Store the content before any object refers to its hash. Returns the revision, or the problem if the content
        cannot be stored."""
        context, record = self._context, policy_config_map(body["metadata"], revision)
        try:
            await apply_owned(context.store, body, record)
            if revision.hash != self._last_usable(body):
                await context.states.save(body, PolicyState(revision=revision.hash), before=None)
        except (KubeInvalidError, KubeForbiddenError, ForeignObjectError, StateTakenError) as error:
            return Problem(conditions.REFUSED_BY_API_SERVER, str(error))
        return revision

    async def _prune(self, body: JsonObject, referring: list[Key], kept: set[str]) -> None:
        """Delete stored contents, except the policy's present content and the contents that a group still uses.

        The ConfigMap of each group has the revisions that the group uses. These ConfigMaps are read only if there is a
        stored content that could be deleted.
        """
        store = self._context.store
        records = (RETRY_POLICY.kind, body["metadata"]["namespace"], body["metadata"]["name"])
        surplus = [
            record
            for record in store.cache(CONFIG_MAP).having(records)
            if is_owned_by(record, body) and annotation_of(record, HASH_ANNOTATION) not in kept
        ]
        if not surplus:
            return
        for namespace, name in referring:
            address = (namespace, naming.retry_config(name))
            seen = store.get(CONFIG_MAP, address)
            config_map = await store.content(CONFIG_MAP, address) if seen is not None else None
            published = read_published(config_map, RetriesState())
            kept |= {revision.hash for revision in published.known} if published is not None else set()
        for record in surplus:
            if annotation_of(record, HASH_ANNOTATION) not in kept:
                await store.delete(CONFIG_MAP, record)
