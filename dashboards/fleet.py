"""The dashboard of one group: state and scaling, lag, handler, retries, workers and losses."""

from collections.abc import Sequence
from typing import Final

from grafana_foundation_sdk.models.dashboard import Dashboard

from dashboards.panels import Panel, choice, dashboard, graph, number, rows_of

LABELS: Final = 'group_namespace="$namespace", group_name="$group"'
CHOSEN: Final = f"{{{LABELS}}}"
MAIN: Final = f'{{{LABELS}, role="main"}}'
WORKER: Final = "{{pod}} {{instance}}"
PARTITION: Final = "{{topic}}-{{partition}}"


def build() -> Dashboard:
    groups = 'label_values(consumer_fleet_group_info{group_namespace="$namespace"}, group_name)'
    variables = [
        choice("namespace", "Namespace", "label_values(consumer_fleet_group_info, group_namespace)"),
        choice("group", "Group", groups),
    ]
    sections = [
        ("State", _state()),
        ("Lag", _lag()),
        ("Handler", _handler()),
        ("Retries", _retries()),
        ("Workers", _workers()),
        ("Losses", _losses()),
    ]
    return dashboard("Fleet", "One ConsumerGroup: workers, partitions, handler and retries", variables, sections)


def _state() -> Sequence[Panel]:
    return (
        number("Ready", "bool_yes_no", _of("ready")),
        number("Ready workers", "none", _of("ready_replicas")),
        number("Wanted workers", "none", _of("wanted_replicas")),
        number("Members", "none", _of("members")),
        number("Lag", "short", _of("lag_records")),
        number("Behind", "s", _of("behind_seconds")),
        rows_of("Kafka group", _of("info"), hidden=("Value",)),
        rows_of("Problems", _of("problem"), text="Conditions that report a problem", hidden=("Value",)),
        graph("State", "none", (_of("state"), "{{state}}")),
        graph("Workers", "none", (_of("wanted_replicas"), "wanted"), (_of("ready_replicas"), "ready")),
        graph(
            "Load of scaling",
            "cps",
            (_of("arrival_records_per_second"), "arrival"),
            (_of("worker_capacity_records_per_second"), "capacity of one worker"),
            text="Only with spec.scaling",
        ),
    )


def _lag() -> Sequence[Panel]:
    return (
        graph("Lag", "short", (_of("lag_records"), "all"), (_of("max_partition_lag_records"), "largest partition")),
        graph("Time behind", "s", (_of("behind_seconds"), "estimate of the operator")),
        graph("Lag by partition", "short", (f"topk(20, {_worker('partition_lag_records')})", PARTITION)),
        graph("Time behind by partition", "s", (f"topk(20, {_worker('partition_behind_seconds')})", PARTITION)),
        graph(
            "Progress by partition",
            "cps",
            (f"topk(20, deriv({_worker('partition_position_offset')}[5m]))", f"{PARTITION} read"),
            (f"topk(20, deriv({_worker('partition_end_offset')}[5m]))", f"{PARTITION} written"),
        ),
        graph(
            "Uncommitted offsets",
            "short",
            (
                f"topk(20, {_worker('partition_position_offset')} - {_worker('partition_committed_offset')})",
                PARTITION,
            ),
        ),
    )


def _handler() -> Sequence[Panel]:
    buckets = _worker("handler_duration_seconds_bucket")
    return (
        graph("Records by result", "cps", (_rate("records_total", "result"), "{{result}}")),
        graph(
            "Duration of a call",
            "s",
            *(
                (f"histogram_quantile({q}, sum by (le) (rate({buckets}[$__rate_interval])))", f"p{q * 100:.0f}")
                for q in (0.5, 0.99)
            ),
            (
                f"sum(rate({_worker('handler_duration_seconds_sum')}[$__rate_interval])) / "
                f"sum(rate({_worker('handler_duration_seconds_count')}[$__rate_interval]))",
                "mean",
            ),
        ),
        graph(
            "Used capacity",
            "percentunit",
            (f"rate(consumer_fleet_worker_busy_seconds_total{MAIN}[$__rate_interval])", WORKER),
        ),
        graph("Timeouts", "cps", (_rate("timeouts_total"), "calls")),
        graph("Records in progress", "none", (_worker("in_flight_records"), WORKER)),
        graph("Outputs", "cps", (_rate("produced_records_total"), "records")),
        graph(
            "Time that calls wait for",
            "percentunit",
            (_rate("poll_wait_seconds_total"), "records"),
            (_rate("ack_wait_seconds_total"), "acknowledgements"),
        ),
    )


def _retries() -> Sequence[Panel]:
    lateness = _worker("due_lateness_seconds_bucket")
    return (
        graph("Waiting records", "short", (_of("retry_waiting_records"), "all"), (_of("retry_due_lag_records"), "due")),
        graph(
            "Time since the oldest retry was due",
            "s",
            (f"time() - {_of('retry_oldest_due_timestamp_seconds')}", "oldest"),
        ),
        graph("Published retries", "cps", (_rate("retry_publishes_total", "delay"), "{{delay}}")),
        graph(
            "Lateness of admitted retries",
            "s",
            (f"histogram_quantile(0.99, sum by (le) (rate({lateness}[$__rate_interval])))", "p99"),
        ),
        graph("Failures by reason", "cps", (_rate("failures_total", "reason"), "{{reason}}")),
        graph("Records in the failed topic", "short", (_of("failed_records"), "records")),
        graph(
            "Breakers",
            "none",
            (_of("breakers_open"), "open"),
            (f"sum by (state) ({_worker('breaker_state')})", "{{state}}"),
        ),
        graph("Retry partitions that wait", "none", (_worker("waiting_partitions"), WORKER)),
    )


def _workers() -> Sequence[Panel]:
    return (
        graph("Ready", "none", (_worker("ready"), WORKER)),
        graph("Partitions", "none", (_worker("assigned_partitions"), WORKER)),
        graph("Held partitions", "none", (_worker("held_partitions"), WORKER), text="Writes are not acknowledged"),
        graph("Rebalances in an hour", "none", (f"increase({_worker('rebalances_total')}[1h])", WORKER)),
        graph("Memory", "bytes", (f"process_resident_memory_bytes and on (instance, job) {_worker('info')}", WORKER)),
        graph("Generation", "none", (_worker("generation"), WORKER)),
        graph("Commits", "cps", (_rate("commits_total", "outcome"), "{{outcome}}")),
        graph("Polls with records", "cps", (_rate("batches_total"), "polls")),
        graph(
            "Revisions",
            "none",
            (f"count by (role, version, revision) ({_worker('info')})", "{{role}} {{version}} {{revision}}"),
        ),
    )


def _losses() -> Sequence[Panel]:
    counters = {
        "lost_partitions": "partitions lost without a commit",
        "abandoned_records": "records handled by two workers",
        "skipped_offsets": "offsets deleted before they were read",
        "unreadable_offsets": "unreadable offsets skipped",
        "cut_offsets": "offsets truncated after they were read",
        "truncations": "truncations",
        "out_of_range": "positions outside the log",
        "suppressed_copies": "copies skipped",
        "damaged_headers": "damaged headers",
        "unknown_policies": "unknown policies",
    }
    queries = ((f"sum(increase({_worker(f'{name}_total')}[1h]))", text) for name, text in counters.items())
    return (graph("Events within an hour", "none", *queries, columns=1),)


def _of(name: str) -> str:
    return f"consumer_fleet_group_{name}{CHOSEN}"


def _worker(name: str) -> str:
    return f"consumer_fleet_worker_{name}{CHOSEN}"


def _rate(name: str, *labels: str) -> str:
    by = f" by ({', '.join(labels)})" if labels else ""
    return f"sum{by} (rate({_worker(name)}[$__rate_interval]))"
