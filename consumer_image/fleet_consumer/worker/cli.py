"""`fleet-consumer`: the command in a worker's container.

Imports nothing heavy before it knows what is asked, so that `--help` and a refused option answer at once.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Final

from fleet_consumer.contract.pod import EXIT_OK, EXIT_SETTINGS, EXIT_SURROUNDINGS
from fleet_consumer.worker.commands.options import parser as command_line
from fleet_consumer.worker.config.role import Role

READING_COMMANDS: Final = ("failed", "offsets")
"""Commands that do nothing but print: without a reader they are done."""
APPLICATION_COMMANDS: Final = ("run", "check")
"""Commands that import the application, which may start threads."""
EXIT_FAILED: Final = 1
"""The interpreter's own exit code for an exception."""
BY_HAND: Final = ("failed", "redrive", "reset", "skip")
"""Commands that an engineer runs, each in a module of its name, and that report their errors alike."""
PACKAGES_OF_THE_EXTRA: Final = ("aiohttp", "prometheus_client", "re2")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code. Without `arguments` this is the program itself, whose end is bounded."""
    parser = command_line()
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
        from fleet_consumer.worker.commands import offsets

        return offsets.run(options)
    if options.command in BY_HAND:
        from fleet_consumer.worker.commands.empty_group import reported

        return reported(lambda: import_module(f"fleet_consumer.worker.commands.{options.command}").run(options))
    if options.local is not None:
        if options.role != Role.MAIN.value:
            parser.error("--role is for --config; --local runs both roles by itself with --retry or --retry-policy")
        from fleet_consumer.worker.local.running import run_local

        return run_local(options, os.environ)
    return _run(options.config, Role(options.role))


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
