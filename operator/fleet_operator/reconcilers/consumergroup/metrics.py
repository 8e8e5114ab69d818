"""Gauges of ConsumerGroups, with exact numbers where the status has buckets."""

from __future__ import annotations

from fleet_operator.clients.kinds import JsonObject
from fleet_operator.planning.observation import UNKNOWN_STATE
from fleet_operator.planning.status.facts import ConsumerGroupFacts
from fleet_operator.planning.status.retry import count_failures, read_redriven
from fleet_operator.runtime.cache import Key
from fleet_operator.runtime.metrics import Metrics


class GroupMetrics:
    """Sets and removes the gauges of groups. An unknown value is absent, not zero."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._states: dict[Key, str] = {}

    def set(self, key: Key, facts: ConsumerGroupFacts, status: JsonObject) -> None:
        metrics = self._metrics
        metrics.group_ready_replicas.labels(*key).set(facts.fleet.ready_replicas if facts.fleet else 0)
        state = status.get("state") or UNKNOWN_STATE
        before = self._states.get(key)
        if before is not None and before != state:
            metrics.group_state.remove(*key, before)
        self._states[key] = state
        metrics.group_state.labels(*key, state).set(1)
        observed = facts.observed_group
        self._set_retries(key, facts, status)
        if observed is None:
            metrics.group_lag.remove(*key)
            metrics.group_members.remove(*key)
            return
        metrics.group_members.labels(*key).set(len(observed.members))
        lag = facts.view.lag
        if lag is not None and lag.complete and lag.total is not None:
            metrics.group_lag.labels(*key).set(lag.total)
        else:
            metrics.group_lag.remove(*key)

    def _set_retries(self, key: Key, facts: ConsumerGroupFacts, status: JsonObject) -> None:
        metrics, observed = self._metrics, facts.observed_group
        metrics.group_breakers_open.labels(*key).set(len(facts.open_breakers))
        retry = observed.retry if observed is not None else None
        redriven = read_redriven((status.get("retry") or {}).get("redriven") or {}, facts.failed_topic_id)
        values = {
            metrics.group_retry_waiting: retry.waiting if retry is not None else None,
            metrics.group_retry_due: retry.due_lag if retry is not None else None,
            metrics.group_retry_oldest_due: retry.oldest_due_at if retry is not None else None,
            metrics.group_failed: count_failures(observed, redriven) if observed is not None else None,
        }
        for gauge, value in values.items():
            if value is None:
                gauge.remove(*key)
            else:
                gauge.labels(*key).set(value)

    def remove(self, key: Key) -> None:
        state = self._states.pop(key, None)
        if state is not None:
            self._metrics.group_state.remove(*key, state)
            metrics = self._metrics
            for gauge in (
                *(metrics.group_lag, metrics.group_members, metrics.group_ready_replicas, metrics.group_breakers_open),
                *(metrics.group_retry_waiting, metrics.group_retry_due, metrics.group_retry_oldest_due),
                metrics.group_failed,
            ):
                gauge.remove(*key)
