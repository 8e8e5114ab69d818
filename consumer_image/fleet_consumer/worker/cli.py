"""`fleet-consumer`: the command in a worker's container.

Slow modules are imported only after the arguments are parsed, so `--help` and argument errors are printed without
delay.
"""

import argparse
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Final

from fleet_consumer.contract.pod import EXIT_OK, EXIT_SETTINGS, EXIT_SURROUNDINGS
from fleet_consumer.worker.commands.options import parser as command_line
from fleet_consumer.worker.config.role import Role

READ_ONLY_COMMANDS: Final = ("failed", "offsets")
"""Commands that only print. Their exit code is 0 even if the reader of their output closes the pipe."""
APPLICATION_COMMANDS: Final = ("run", "check")
"""Commands that import the application's code. Threads of this code could keep the process alive at exit."""
EXIT_FAILED: Final = 1
"""The Python interpreter's exit code after an uncaught exception."""
BY_HAND: Final = ("failed", "redrive", "reset", "skip")
"""Commands for engineers. Each has a module of the same name, and all of them report errors in the same way."""
PACKAGES_OF_THE_EXTRA: Final = ("aiohttp", "prometheus_client", "re2")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code.

    `arguments` is None in the installed program, which reads `sys.argv`. A command in `APPLICATION_COMMANDS` then ends
    the process within a bounded time.
    """
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
        # The reader closed the pipe. The interpreter flushes stdout at exit, which must not fail on the closed pipe.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_OK if options.command in READ_ONLY_COMMANDS else EXIT_SURROUNDINGS
    except ModuleNotFoundError as missing:
        if missing.name not in PACKAGES_OF_THE_EXTRA:
            raise
        needs = f"fleet-consumer {options.command} needs the package {missing.name}, which is not installed"
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
            parser.error("--role applies to --config; --local runs both roles if --retry or --retry-policy is set")
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
