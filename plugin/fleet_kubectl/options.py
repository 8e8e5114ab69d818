"""Command line of `kubectl fleet`. This module imports no slow modules, so that `--help` is fast."""

import argparse
from functools import partial
from typing import Final

from fleet_consumer.distribution import own_version

EXIT_OK: Final = 0
EXIT_NO: Final = 1
"""Exit code if a fleet is not Ready or does not exist, or if the user declined."""
EXIT_OPTIONS: Final = 2
"""Exit code for wrong options, as in argparse."""
EXIT_ERROR: Final = 3
EXIT_INTERRUPTED: Final = 130

CODES: Final = "Exit codes: 0 done, 1 declined, 2 wrong options, 3 an error (see standard error), 130 Ctrl-C."

EXAMPLES: Final = {
    "status": """\
examples:
  # the fleets of your namespace, problems first
  kubectl fleet status

  # all fleets of the cluster, for a program
  kubectl fleet status -A -o json

Columns: WORKERS ready/wanted; LAG uncommitted records, with ? if it is not up to date; BEHIND age of the oldest
uncommitted record; WAITING records that wait for a retry; FAILED records in the failed topic that were not put back.
Exit codes: 0 all are Ready, 1 at least one is not or does not exist, 2 wrong options, 3 an error, 130 Ctrl-C. """,
    "explain": f"example:\n  kubectl fleet explain orders -n shop\n\n{CODES}\n",
    "top": f"""\
example:
  kubectl fleet top -A

Keys: arrows and page keys move, / filters by text, s changes the order, r reverses it, Enter opens a fleet, Escape goes
back, q quits. {CODES}
""",
    "failed": """\
examples:
  # how many records failed, by reason and error class
  kubectl fleet failed count orders

  # the records of the last two hours that failed with one class of error
  kubectl fleet failed list orders --from 2h --error-class ConnectionError

  # one record with all headers, key and value; 3:1841 is its place in the output of `list`
  kubectl fleet failed show orders 3:1841

Runs `fleet-consumer failed` in a worker's pod, which needs the permission `create` on pods/exec. Changes nothing.
Exit codes: 0 done, 2 wrong options, 3 an error, 130 Ctrl-C; others: see `fleet-consumer failed --help`.
""",
    "redrive": f"""\
examples:
  # count exactly the records that would be put back, and put none back
  kubectl fleet redrive orders -n shop --reason Exhausted --dry-run

  # put the records back at 50 per second, after a preview and a question
  kubectl fleet redrive orders --error-class ConnectionError --rate 50

  # one record, by its place in the output of `kubectl fleet failed list orders`
  kubectl fleet redrive orders --record 3:1841

Creates a Redrive, which copies the records to the group's redrive topic. The operator starts retry workers, which
handle them again. Without an option that selects records, all failed records are put back. Without --to, only records
that failed before the preview are copied. A failure of a record is put back once, so the same command can be run again.
The failed topic keeps a record that was put back, but `kubectl fleet status` no longer counts it as FAILED, unless it
fails again.
{CODES}
""",
    "reset": f"""\
examples:
  # show the offsets before and after, and change nothing
  kubectl fleet reset orders --to earliest --dry-run

  # show the plan, ask, and then handle every record of the last two hours again
  kubectl fleet reset orders --to 2h

  # set the offset of one partition
  kubectl fleet reset orders --to offsets --offset orders-3:1734

Creates an OffsetReset with the offsets that were shown. The operator stops the main workers, sets the offsets, and
starts the workers again.
{CODES}
""",
    "logs": f"""\
examples:
  kubectl fleet logs orders --tail 50
  kubectl fleet logs orders --part retry -f
  kubectl fleet logs orders --member 0

{CODES}
""",
    "support-bundle": f"""\
example:
  kubectl fleet support-bundle orders -n shop

Writes a new file to the working directory, with the objects, Events and logs of one ConsumerGroup. Secrets are not
read; values of environment variables and of ConfigMaps are left out. README.txt in the file lists the objects and
logs that could not be read.
{CODES}
""",
}
HELP: Final = {
    "status": "fleets with their state, problems first",
    "explain": "explain a fleet's state and number of workers, and give advice",
    "top": "a live view of all fleets, full screen",
    "failed": "inspect failed records: failed list, failed show, failed count",
    "redrive": "have failed records handled again, after a preview",
    "reset": "set a group's committed offsets, after a preview",
    "logs": "merged logs of a fleet's workers",
    "support-bundle": "write objects, Events and logs of a fleet to one file, without secrets",
}


def parser() -> argparse.ArgumentParser:
    root = argparse.ArgumentParser(
        prog="kubectl fleet", description="Fleets of Kafka consumers (ConsumerGroups of Consumer Fleet)."
    )
    root.add_argument("--version", action="version", version=f"kubectl-fleet {own_version()}")
    commands = root.add_subparsers(dest="command", required=True, metavar="COMMAND")
    made = {name: _command(commands, name) for name in HELP}
    for name in ("explain", "redrive", "reset", "logs", "support-bundle"):
        made[name].add_argument("group", metavar="GROUP", help="name of the fleet: its ConsumerGroup")
    _add_status(made["status"])
    _add_all_namespaces(made["top"])
    _add_failed(made["failed"])
    _add_redrive(made["redrive"])
    _add_reset(made["reset"])
    _add_logs(made["logs"])
    _add_bundle(made["support-bundle"])
    return root


def _command(commands: "argparse._SubParsersAction[argparse.ArgumentParser]", name: str) -> argparse.ArgumentParser:
    command = commands.add_parser(
        name,
        help=HELP[name],
        description=f"{HELP[name][0].upper()}{HELP[name][1:]}.",
        epilog=EXAMPLES[name],
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    if name != "failed":
        add_cluster_options(command)
    return command


def add_cluster_options(command: argparse.ArgumentParser) -> None:
    add = command.add_argument_group("cluster, as in kubectl").add_argument
    add("--namespace", "-n", metavar="NAME", help="namespace (default: the context's namespace)")
    add("--context", metavar="NAME", help="context of the kubeconfig (default: its current context)")
    add("--kubeconfig", metavar="FILE", help="kubeconfig (default: KUBECONFIG, then ~/.kube/config)")


def _add_all_namespaces(command: argparse.ArgumentParser) -> None:
    command.add_argument("--all-namespaces", "-A", action="store_true", help="fleets of all namespaces")


def _add_status(command: argparse.ArgumentParser) -> None:
    command.add_argument("names", nargs="*", metavar="NAME", help="only these ConsumerGroups")
    _add_all_namespaces(command)
    command.add_argument("-o", "--output", choices=("table", "json"), default="table", help="default: %(default)s")


def _add_failed(command: argparse.ArgumentParser) -> None:
    parts = command.add_subparsers(dest="part", required=True, metavar="list|show|count")
    for name, said in (
        ("list", "one line for each failed record"),
        ("show", "one failed record with all headers, key and value"),
        ("count", "numbers of failed records by reason and error class"),
    ):
        part = parts.add_parser(name, help=said, description=f"Print {said}. Changes nothing.")
        part.add_argument("group", metavar="GROUP", help="name of the fleet: its ConsumerGroup")
        if name == "show":
            part.add_argument("place", metavar="PARTITION:OFFSET", help="place of the record, as `list` prints it")
        else:
            _add_selection(part.add_argument_group("records"))
        if name == "list":
            part.add_argument("--limit", type=_positive, metavar="N", help="stop after N records")
        if name == "count":
            part.add_argument("--by", action="append", default=[], choices=("reason", "class", "hour"))
        part.add_argument("--json", action="store_true", help="print one JSON object on each line")
        part.add_argument("--topic", metavar="TOPIC", help="a retry topic instead of the group's failed topic")
        add_cluster_options(part)


def _add_selection(group: argparse._ArgumentGroup) -> None:
    add = partial(group.add_argument, default=None)
    group.add_argument("--reason", action="append", default=[], help="only this reason, such as Exhausted; repeatable")
    group.add_argument(
        "--error-class",
        action="append",
        default=[],
        metavar="CLASS",
        help="only this error class, by its qualified name or the part after the last dot; repeatable",
    )
    add("--from", dest="start", metavar="TIME", help="only from this time on: 2026-11-21T08:00:00Z, or 2h for 2 h ago")
    add("--to", dest="end", metavar="TIME", help="only before this time (format: see --from)")


def _add_redrive(command: argparse.ArgumentParser) -> None:
    records = command.add_argument_group("records (default: all)")
    _add_selection(records)
    records.add_argument("--error-regex", metavar="REGEX", help="only if the error, as `class: message`, matches (RE2)")
    records.add_argument("--key-regex", metavar="REGEX", help="only if the key matches (RE2)")
    place = "only this record, by its place in the failed topic, as `failed list` prints it; repeatable"
    records.add_argument("--record", metavar="PARTITION:OFFSET", action="append", default=[], help=place)
    records.add_argument("--max-records", type=_positive, metavar="N", help="stop after N records")
    records.add_argument(
        "--max-redrives",
        type=_positive,
        metavar="N",
        help="only records whose earlier failures were put back fewer than N times (default: 3)",
    )
    command.add_argument("--rate", type=_positive, metavar="N", help="records per second (default: no limit)")
    _add_run(command, "Redrive")


def _add_reset(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--to",
        required=True,
        metavar="WHERE",
        help="earliest, latest, a time (2026-11-21T08:00:00Z, or 2h for 2 h ago), or offsets (with --offset)",
    )
    command.add_argument(
        "--topic", action="append", default=[], metavar="TOPIC", help="only this source topic; repeatable"
    )
    command.add_argument(
        "--offset", action="append", default=[], metavar="TOPIC-PARTITION:OFFSET", help="next offset; repeatable"
    )
    command.add_argument(
        "--not-after",
        type=_positive,
        default=3600,
        metavar="SECONDS",
        help="start within this time from now, or not at all (default: %(default)s)",
    )
    _add_run(command, "OffsetReset")


def _add_run(command: argparse.ArgumentParser, kind: str) -> None:
    add = command.add_argument
    add("--name", metavar="NAME", help=f"name of the {kind} (default: the group's name and the time)")
    add("--yes", "-y", action="store_true", help="show the preview, but do not ask")
    add("--dry-run", action="store_true", help="change nothing, and show what would happen")
    add("--no-wait", action="store_true", help=f"return as soon as the {kind} is created")
    add(
        "--timeout",
        type=_positive,
        default=600,
        metavar="SECONDS",
        help=f"longest wait for the end of the {kind}, which then continues (default: %(default)s)",
    )


def _add_logs(command: argparse.ArgumentParser) -> None:
    add = command.add_argument
    add("--part", choices=("main", "retry", "all"), default="all", help="workers of this part (default: %(default)s)")
    add("--member", metavar="POD", help="only this pod, or the main worker with this number")
    add("--follow", "-f", action="store_true", help="print new lines until Ctrl-C")
    add("--tail", type=_positive, default=100, metavar="N", help="last lines of each worker (default: %(default)s)")
    add("--previous", "-p", action="store_true", help="logs of the containers before their last restart")


def _add_bundle(command: argparse.ArgumentParser) -> None:
    add = command.add_argument
    add("--output", "-o", metavar="FILE", help="file to write (default: fleet-NAMESPACE-GROUP-TIME.tar.gz)")
    add("--operator-namespace", default="consumer-fleet", metavar="NAME", help="default: %(default)s")
    add("--tail", type=_positive, default=2000, metavar="N", help="last lines of each log (default: %(default)s)")


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return number
