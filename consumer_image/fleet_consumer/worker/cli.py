"""`fleet-consumer`: the command in a worker's container.

Imports nothing heavy before it knows what is asked, so that `--help` and a refused setting answer at once.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import Final

from fleet_consumer.contract.pod import EXIT_OK, EXIT_SETTINGS, EXIT_SURROUNDINGS, WORKER_CONFIG
from fleet_consumer.distribution import own_version
from fleet_consumer.worker.commands import failed as failed_command
from fleet_consumer.worker.commands import offsets as offsets_command
from fleet_consumer.worker.commands import redrive as redrive_command
from fleet_consumer.worker.commands import reset as reset_command
from fleet_consumer.worker.commands import skip as skip_command
from fleet_consumer.worker.config.role import Role
from fleet_consumer.worker.local.options import EXAMPLES, add_local_options

READING_COMMANDS: Final = ("failed", "offsets")
"""Commands that do nothing but print: without a reader they are done."""
APPLICATION_COMMANDS: Final = ("run", "check")
"""Commands that import the application, which may start threads."""
EXIT_FAILED: Final = 1
"""The interpreter's own exit code for an exception."""
BY_HAND: Final[Mapping[str, ModuleType]] = {
    "failed": failed_command,
    "redrive": redrive_command,
    "reset": reset_command,
    "skip": skip_command,
}
"""Commands that an engineer runs; each module has its examples, its options and what it does."""
PACKAGES_OF_THE_EXTRA: Final = ("aiohttp", "prometheus_client", "re2")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code. Without `arguments` this is the program itself, whose end is bounded."""
    parser = _parser()
    options = parser.parse_args(arguments)
    code = EXIT_FAILED
    try:
        code = _outcome(parser, options)
    finally:
        if arguments is None and options.command in APPLICATION_COMMANDS:
            from fleet_consumer.worker.lifecycle.termination import bound_exit

            bound_exit(code)
    return code


def _outcome(parser: argparse.ArgumentParser, options: argparse.Namespace) -> int:
    try:
        code = _run_command(parser, options)
        if sys.stdout is not None:
            sys.stdout.flush()
        return code
    except BrokenPipeError:
        # The reader of our output has closed it. The interpreter must not try to write the rest at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_OK if options.command in READING_COMMANDS else EXIT_SURROUNDINGS
    except ModuleNotFoundError as missing:
        if missing.name not in PACKAGES_OF_THE_EXTRA:
            raise
        needs = f"fleet-consumer {options.command} needs the package {missing.name}, which the library alone does not"
        print(f"PackageMissing: {needs}: run pip install '.[consumer]' in a clone of the project", file=sys.stderr)
        return EXIT_SETTINGS


def _run_command(parser: argparse.ArgumentParser, options: argparse.Namespace) -> int:
    if options.command == "check":
        from fleet_consumer.worker.commands.check import check

        result = check(options.config)
        result.report()
        return result.exit_code
    if options.command == "offsets":
        return offsets_command.run(options)
    if options.command in BY_HAND:
        code: int = BY_HAND[options.command].run(options)
        return code
    if options.local is not None:
        if options.role != Role.MAIN.value:
            parser.error("--role is for --config; --local runs both roles by itself with --retry or --retry-policy")
        from fleet_consumer.worker.local.running import run_local

        return run_local(options, os.environ)
    return _run(options.config, Role(options.role))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="fleet-consumer", description="A worker of a Consumer Fleet.")
    parser.add_argument("--version", action="version", version=f"fleet-consumer {own_version()}")
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser(
        "run",
        help="consume until SIGTERM",
        description="Consume until SIGTERM or Ctrl-C. Exit codes: 0 drained, 20 settings or handler unusable, "
        "21 brokers or topics unusable (--local only), 75 handler hung.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    run.add_argument(
        "--role",
        choices=[role.value for role in Role],
        default=Role.MAIN.value,
        help="main reads the source topics, retry the group's retry and redrive topics (default: %(default)s)",
    )
    add_local_options(run)
    check = commands.add_parser(
        "check",
        help="try settings, handler, brokers and topics, and say what is wrong",
        description="Try settings, handler, brokers and topics without joining the group. The last line of standard "
        "output is a JSON object {ok, reason, message}. Exit codes: 0 all is well, 20 the settings or the handler must "
        "be mended, 21 the surroundings (brokers, credentials, topics).",
    )
    offsets_command.add_options(commands.add_parser("offsets", help="show what a group has committed"))
    _add_by_hand(
        commands.add_parser,
        "failed",
        help="look into a group's failed records",
        description="Look into a group's failed topic. Joins no group, commits nothing, changes nothing.",
    )
    _add_by_hand(
        commands.add_parser,
        "redrive",
        help="put failed records back for their group, once each",
        description="Write the selected records of a group's failed topic to its redrive topic, which its retry "
        "workers read at once. The records stay in the failed topic.",
    )
    _add_by_hand(
        commands.add_parser,
        "reset",
        help="set the commits of a group without members",
        description="Set the commits of a group without members to the start, the end, or a time.",
    )
    _add_by_hand(
        commands.add_parser,
        "skip",
        help="set the next record of a group without members aside",
        description="Set the next record of a partition aside in the failed topic, without handling it.",
    )
    for command in (run, check):
        command.add_argument("--config", default=WORKER_CONFIG, metavar="FILE", help="default: %(default)s")
    return parser


def _add_by_hand(add_parser: Callable[..., argparse.ArgumentParser], name: str, **texts: str) -> None:
    """Add one of the commands that an engineer runs."""
    command = BY_HAND[name]
    parser = add_parser(name, epilog=command.EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter, **texts)
    command.add_options(parser)


def _run(path: str, role: Role) -> int:
    from fleet_consumer.contract.section import SettingsInvalid
    from fleet_consumer.contract.worker_config import load_config
    from fleet_consumer.handlers.loading import HandlerImportFailed, HandlerNotCallable
    from fleet_consumer.worker.commands.check import CheckResult
    from fleet_consumer.worker.printed import outlive_readers
    from fleet_consumer.worker.process import run_worker

    outlive_readers()
    try:
        return run_worker(load_config(path), os.environ, role=role)
    except (SettingsInvalid, HandlerImportFailed, HandlerNotCallable) as error:
        CheckResult.refused(error).report()
        return EXIT_SETTINGS
