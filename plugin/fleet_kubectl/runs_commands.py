"""The commands `redrive` and `reset`, which create an object and follow its progress."""

import json
import sys
import threading
from argparse import Namespace
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from fleet_consumer.clock import SystemClock
from fleet_kubectl import runs, selection
from fleet_kubectl.api import WATCH_S, Api, WatchExpired
from fleet_kubectl.commands import runner_of
from fleet_kubectl.errors import CommandFailed, FleetError, NoAnswer, OptionInvalid, RunFailed
from fleet_kubectl.options import EXIT_NO, EXIT_OK
from fleet_kubectl.tables import printable, printable_lines
from fleet_operator.clients.kinds import CONSUMER_GROUP, OFFSET_RESET, REDRIVE, JsonObject, Kind
from fleet_operator.planning import labels

FIRST_RECORDS = 3
AGAIN_S = 1.0
"""Seconds between the end of a watch and the next list."""


def redrive(api: Api, options: Namespace) -> int:
    now = SystemClock().wall()
    if not options.dry_run:
        options = selection.until_now(options, now)
    body = selection.redrive_body(options, now, dry_run=options.dry_run)
    group = api.get(CONSUMER_GROUP, api.namespace, options.group)
    who = f"ConsumerGroup {api.namespace}/{options.group}"
    if not (group.get("spec") or {}).get("retry"):
        raise OptionInvalid(
            f"{who} has no spec.retry, so nothing would read the records: set it first (docs/retries.md)"
        )
    _check_question(options)
    if options.dry_run:
        return _run(api, options, REDRIVE, body, runs.redrive_end)
    until = f" until {options.end}" if options.end and not options.record else ""
    print(f"Failed records of {who}{until} that match:")
    try:
        _print_preview(api, options, now)
    except FleetError as error:
        print(f"{error.reason}: {error}", file=sys.stderr)
        print("A dry run counts the records instead:")
        preview = selection.redrive_body(options, now, dry_run=True)
        _run(api, Namespace(**{**vars(options), "no_wait": False}), REDRIVE, preview, runs.redrive_end)
    rate = f"at most {options.rate} per second" if options.rate else "without a rate limit"
    print(f"\nRedrive {body['metadata']['name']} puts them back for this group only, {rate}.")
    if not _agreed(options, "Put them back?"):
        return EXIT_NO
    return _run(api, options, REDRIVE, body, runs.redrive_end)


def _print_preview(api: Api, options: Namespace, now: float) -> None:
    """Print the numbers of records by reason and class, and the first records. A worker's pod reads them now.

    Raises FleetError if no pod can run the command, or its output cannot be read.
    """
    pod = runner_of(api, options.group)
    filters = selection.failed_arguments(options, now)
    if options.record:
        for place in options.record[:FIRST_RECORDS]:
            selection.place_of(place)
            (shown,) = _json_lines(api, pod, selection.failed_command("show", place, "--json"))
            print(_record_line(shown))
        print(f"{len(options.record):>9}  in all")
    else:
        rows = _json_lines(api, pod, selection.failed_command("count", *filters, "--json"))
        for row in rows:
            print(f"{int(row['count']):>9}  {printable(str(row['reason']))}  {printable(str(row['class']))}")
        print(f"{sum(int(row['count']) for row in rows):>9}  in all")
        listing = selection.failed_command("list", *filters, "--limit", str(FIRST_RECORDS))
        print("First records:")
        print(printable_lines(_output(api, pod, listing)), end="")
    print("These numbers include records that were put back before, which are not put back again.")
    if options.error_regex or options.key_regex or (options.record and filters):
        print(
            "The numbers ignore regular expressions, and filters that are combined with --record. "
            "For exact numbers, use --dry-run."
        )


def _json_lines(api: Api, pod: str, command: tuple[str, ...]) -> list[JsonObject]:
    """Parse the JSON lines that a command in a pod prints. Raises CommandFailed if they do not have a worker's
    fields."""
    try:
        found = [json.loads(line) for line in _output(api, pod, command).split("\n") if line.strip()]
        wanted = {"count", "reason", "class"} if "count" in command else {"partition", "offset"}
        if all(isinstance(each, dict) and wanted <= each.keys() for each in found):
            return found
    except (ValueError, RecursionError):
        pass  # CommandFailed is raised below
    raise CommandFailed(
        f"pod {api.namespace}/{pod}: {' '.join(command)} printed unexpected output; run it yourself with "
        "`kubectl fleet failed`"
    )


def _record_line(shown: JsonObject) -> str:
    place = f"{shown['partition']}:{shown['offset']}"
    words = (place, shown.get("origin"), shown.get("reason"), shown.get("errorClass"), shown.get("errorMessage"))
    return "  " + "  ".join(printable(str(word)) for word in words if word is not None)


def _output(api: Api, pod: str, command: tuple[str, ...]) -> str:
    """Run a command in a pod and return its standard output; standard error is printed. Raises RunFailed and
    CommandFailed."""
    parts: list[str] = []

    def keep(text: str, is_error: bool) -> None:
        if is_error:
            print(printable_lines(text), end="", file=sys.stderr)
        else:
            parts.append(text)

    code = api.execute(api.namespace, pod, labels.CONTAINER, command, keep)
    if code:
        raise RunFailed(
            f"pod {api.namespace}/{pod}: {' '.join(command)} ended with exit code {code}; see its error above"
        )
    return "".join(parts)


def reset(api: Api, options: Namespace) -> int:
    now = SystemClock().wall()
    body = selection.reset_body(options, now, dry_run=False)
    preview = selection.reset_body(options, now, dry_run=True)
    _check_question(options)
    api.get(CONSUMER_GROUP, api.namespace, options.group)
    plan = _followed_to_its_end(Place(api, OFFSET_RESET, preview), options.timeout)
    print("\n".join(runs.reset_plan(plan)))
    if options.dry_run:
        print("This was a dry run: no offset was changed.")
        return EXIT_OK
    planned = selection.reset_to_plan(body, plan.get("status") or {})
    name = body["metadata"]["name"]
    if planned is None:
        print(f"\nThe dry run does not list all offsets, so OffsetReset {name} cannot set exactly the offsets above.")
        print(f"The OffsetReset stops the main workers, resolves `--to {options.to}` again, and starts the workers.")
    else:
        print(f"\nOffsetReset {name} stops the main workers, sets these offsets, and starts the workers.")
    print("Every record from the new offsets on is handled, even if it was handled before.")
    if not _agreed(options, "Set the offsets?"):
        return EXIT_NO
    return _run(api, options, OFFSET_RESET, planned or body, runs.reset_end)


def _check_question(options: Namespace) -> None:
    """Raise OptionInvalid if the command will ask a question that nobody can answer. Called before any object is
    created."""
    if not (options.yes or options.dry_run or sys.stdin.isatty()):
        raise OptionInvalid("standard input is not a terminal, so the question cannot be asked: add --yes or --dry-run")


def _agreed(options: Namespace, question: str) -> bool:
    if options.yes:
        return True
    try:
        agreed = input(f"{question} [y/N] ").strip().lower() in ("y", "yes")
    except EOFError as ended:
        raise NoAnswer("standard input ended, so nothing was changed; answer y or n, or add --yes") from ended
    if not agreed:
        print("Nothing was changed.")
    return agreed


def _run(
    api: Api, options: Namespace, kind: Kind, body: JsonObject, end: Callable[[runs.JsonObject, str], list[str]]
) -> int:
    """Create an object and, without `--no-wait`, follow its progress and print its result. Raises RunFailed."""
    place = Place(api, kind, body)
    if options.no_wait:
        place.create()
        print(f"Follow its progress with: {place.command}")
    else:
        print("\n".join(end(_followed_to_its_end(place, options.timeout), api.namespace)))
    return EXIT_OK


@dataclass(frozen=True, slots=True)
class Place:
    """An object to create and follow."""

    api: Api
    kind: Kind
    body: JsonObject

    @property
    def name(self) -> str:
        return str(self.body["metadata"]["name"])

    @property
    def command(self) -> str:
        return f"kubectl get {self.kind.plural} {self.name} -n {self.api.namespace}"

    def create(self) -> None:
        self.api.create(self.kind, self.api.namespace, self.body)
        print(f"{self.kind} {self.api.namespace}/{self.name} is created.", flush=True)


def _followed_to_its_end(place: Place, timeout_s: int) -> runs.JsonObject:
    """Create an object, print its progress, and return the object when it has succeeded. Raises RunFailed."""
    place.create()
    last: runs.JsonObject | None = None
    try:
        for seen_body, line in runs.changed(_followed(place, timeout_s)):
            last = seen_body
            print(line, flush=True)
    except KeyboardInterrupt:
        print(f"\n{place.kind} {place.name} continues in the cluster: {place.command}", file=sys.stderr)
        raise
    if last is None or runs.phase_of(last) != "Succeeded":
        seen = "it was deleted" if last is None else runs.reason_text(last)
        raise RunFailed(
            f"{place.kind} {place.api.namespace}/{place.name}: {seen}; correct the cause, then run the same command "
            "again"
        )
    return last


def _followed(place: Place, timeout_s: int) -> Iterator[JsonObject]:
    """Yield the states of the object until its final phase. Raises RunFailed after `timeout_s` seconds."""
    api, kind = place.api, place.kind
    clock = SystemClock()
    deadline = clock.monotonic() + timeout_s
    only = {"fieldSelector": f"metadata.name={place.name}"}
    while (left := deadline - clock.monotonic()) > 0:
        page = api.list(kind, api.namespace, only)
        for body in page.items:
            yield {**body, "kind": kind.kind}
        if not page.items or runs.is_final(page.items[0]):
            return
        ends = {"timeoutSeconds": str(min(int(left) + 1, WATCH_S))}
        try:
            for event in api.watch(kind, api.namespace, page.version, only | ends):
                if event["type"] == "DELETED":
                    return
                if event["type"] != "BOOKMARK":
                    yield event["object"]
                    if runs.is_final(event["object"]):
                        return
        except WatchExpired:
            pass  # the next list has the newest state
        threading.Event().wait(AGAIN_S)
    raise RunFailed(
        f"{kind} {api.namespace}/{place.name} has not ended within {timeout_s} s, but continues; follow it with "
        f"`{place.command} -w`, or see the operator's log"
    )
