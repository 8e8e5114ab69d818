"""The read-only commands: `status`, `explain`, `failed`, `logs`."""

import json
import queue
import shutil
import sys
import threading
from argparse import Namespace
from collections.abc import Iterator
from contextlib import suppress
from typing import Final

from fleet_consumer.clock import SystemClock
from fleet_kubectl import loglines, pods, selection
from fleet_kubectl.api import Api
from fleet_kubectl.errors import FleetError
from fleet_kubectl.explaining import Facts
from fleet_kubectl.explaining import explain as explained
from fleet_kubectl.groups import fleet_of, problems_first, status_lines
from fleet_kubectl.options import EXIT_NO, EXIT_OK
from fleet_kubectl.tables import WIDTH, printable_lines
from fleet_operator.clients.kinds import CONSUMER_GROUP, OFFSET_RESET, POD, REDRIVE, JsonObject
from fleet_operator.planning import labels

NEW_PODS_S: Final = 5.0
"""Seconds between two searches for new pods while logs are followed."""


def status(api: Api, options: Namespace) -> int:
    namespace = None if options.all_namespaces else api.namespace
    names = {*options.names}
    if len(names) == 1 and namespace is not None:
        found = [api.get(CONSUMER_GROUP, namespace, options.names[0])]
    else:
        found = _named(api.list(CONSUMER_GROUP, namespace).items, names)
    fleets = [fleet_of(body) for body in found]
    if options.output == "json":
        print(json.dumps([fleet.summary() for fleet in problems_first(fleets)], indent=2))
    elif not fleets:
        print(
            f"no ConsumerGroup in {'the cluster' if namespace is None else f'namespace {namespace}'}", file=sys.stderr
        )
    else:
        width = shutil.get_terminal_size((WIDTH, 24)).columns if sys.stdout.isatty() else WIDTH
        print("\n".join(status_lines(fleets, width=width, namespaces=namespace is None)))
    all_ready = all(fleet.ready == "True" for fleet in fleets)
    return EXIT_OK if all_ready and names <= {fleet.name for fleet in fleets} else EXIT_NO


def _named(bodies: list[JsonObject], names: set[str]) -> list[JsonObject]:
    """The objects with these names; without names, all objects. Names without an object are reported."""
    if not names:
        return bodies
    found = [body for body in bodies if body["metadata"]["name"] in names]
    for name in sorted(names - {body["metadata"]["name"] for body in found}):
        print(f"ObjectNotFound: ConsumerGroup {name} does not exist; run `kubectl fleet status -A`", file=sys.stderr)
    return found


def explain(api: Api, options: Namespace) -> int:
    namespace, name = api.namespace, options.group
    group = api.get(CONSUMER_GROUP, namespace, name)
    missing: list[str] = []
    found: dict[str, list[JsonObject]] = {}
    of_group = {"fieldSelector": f"spec.groupRef.name={name}"}
    for kind, query in ((POD, selector(name)), (REDRIVE, of_group), (OFFSET_RESET, of_group)):
        try:
            items = api.list(kind, namespace, query).items
            found[kind.kind] = [{**item, "kind": kind.kind} for item in items]
        except FleetError as error:
            missing.append(f"{error.reason}: {error}")
    facts = Facts(
        group,
        pods=found.get(POD.kind, ()),
        runs=[*found.get(REDRIVE.kind, ()), *found.get(OFFSET_RESET.kind, ())],
        missing=missing,
    )
    print("\n".join(explained(facts, SystemClock().wall())))
    return EXIT_OK


def selector(group: str) -> dict[str, str]:
    return {"labelSelector": f"{labels.GROUP_LABEL}={group}"}


def failed(api: Api, options: Namespace) -> int:
    """Run `fleet-consumer failed` in a worker's pod; returns its exit code."""
    arguments = [options.place] if options.part == "show" else selection.failed_arguments(options, SystemClock().wall())
    if options.part == "list" and options.limit:
        arguments += ["--limit", str(options.limit)]
    if options.part == "count":
        arguments += [word for by in options.by for word in ("--by", by)]
    arguments += ["--json"] if options.json else []
    arguments += ["--topic", options.topic] if options.topic else []
    pod = runner_of(api, options.group)
    return api.execute(
        api.namespace, pod, labels.CONTAINER, selection.failed_command(options.part, *arguments), _print_as_it_comes
    )


def runner_of(api: Api, group: str) -> str:
    """Find a pod of the group in which a command can run. Raises ObjectNotFound and NoWorkerRuns."""
    found = api.list(POD, api.namespace, selector(group)).items
    if not found:
        api.get(CONSUMER_GROUP, api.namespace, group)  # a wrong name raises ObjectNotFound, not NoWorkerRuns
    return pods.runner(found, api.namespace, group)


def _print_as_it_comes(text: str, is_error: bool) -> None:
    print(printable_lines(text), end="", file=sys.stderr if is_error else sys.stdout, flush=True)


def logs(api: Api, options: Namespace) -> int:
    found = _log_pods(api, options)
    if not found:
        api.get(CONSUMER_GROUP, api.namespace, options.group)
        raise pods.no_member(api.namespace, options.group, options.member, options.part)
    if options.follow:
        for line in _followed(api, options, found):
            _print_line(line, max(map(len, found)))
        return EXIT_OK
    lines: list[loglines.Line] = []
    for pod in found:
        try:
            lines += [loglines.line_of(pod, raw) for raw in api.log(api.namespace, pod, _log_query(options))]
        except FleetError as error:  # a container that does not run yet must not hide other logs
            print(f"{error.reason}: {error}", file=sys.stderr)
    for line in loglines.merged(lines):
        _print_line(line, max(map(len, found)))
    return EXIT_OK


def _print_line(line: loglines.Line, width: int) -> None:
    print("\n".join(loglines.shown(line, width)), flush=True)


def _log_pods(api: Api, options: Namespace) -> list[str]:
    listed = api.list(POD, api.namespace, selector(options.group)).items
    return [pods.name_of(pod) for pod in pods.workers(listed, options.part, options.member)]


def _log_query(options: Namespace) -> dict[str, str]:
    query = {"container": labels.CONTAINER, "timestamps": "true", "tailLines": str(options.tail)}
    return query | ({"previous": "true"} if options.previous else {}) | ({"follow": "true"} if options.follow else {})


def _followed(api: Api, options: Namespace, found: list[str]) -> Iterator[loglines.Line]:
    """Yield the log lines of all pods as they arrive, including pods that start later. Ends only with Ctrl-C.

    One thread for each pod reads its log. The threads are daemon threads, because they read from sockets without a
    timeout.
    """
    lines: queue.Queue[loglines.Line] = queue.Queue(maxsize=10_000)
    alive: dict[str, threading.Thread] = {}
    clock = SystemClock()
    searched = clock.monotonic()

    def read(pod: str) -> None:
        try:
            for raw in api.log(api.namespace, pod, _log_query(options), read_s=None):
                lines.put(loglines.line_of(pod, raw))
        except FleetError:
            return  # the next search for pods reads this pod again, if it still exists

    while True:
        for pod in found:
            if pod not in alive or not alive[pod].is_alive():
                alive[pod] = threading.Thread(target=read, args=(pod,), name=f"log-{pod}", daemon=True)
                alive[pod].start()
        with suppress(queue.Empty):
            yield lines.get(timeout=NEW_PODS_S)
        if clock.monotonic() - searched >= NEW_PODS_S:
            found, searched = _log_pods(api, options), clock.monotonic()
