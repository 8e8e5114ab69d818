"""Entry point of `kubectl-fleet`, which kubectl runs as `kubectl fleet`. A command's modules are imported only when
that command runs."""

import logging
import os
import sys
from argparse import Namespace
from collections.abc import Callable, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Final

from fleet_kubectl.errors import FleetError
from fleet_kubectl.options import EXIT_ERROR, EXIT_INTERRUPTED, EXIT_OK, EXIT_OPTIONS, parser

if TYPE_CHECKING:
    from fleet_kubectl.api import Api

PACKAGES_OF_THE_EXTRA: Final = ("kubernetes", "textual", "pydantic", "yaml", "urllib3", "websocket")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code. An error is printed as one line on standard error: a reason word and a
    message."""
    options = parser().parse_args(arguments)
    # urllib3 would log each connection attempt; the error message suffices.
    logging.getLogger("urllib3").setLevel(logging.ERROR)
    try:
        return _run(options)
    except FleetError as error:
        print(f"{error.reason}: {error}", file=sys.stderr)
        return EXIT_ERROR
    except KeyboardInterrupt:
        print(file=sys.stderr)
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        # The reader closed the pipe. At exit the interpreter must not flush the rest of the output to the closed pipe.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_OK
    except ModuleNotFoundError as missing:
        if (missing.name or "").split(".")[0] not in PACKAGES_OF_THE_EXTRA:
            raise
        needs = f"kubectl fleet {options.command} needs the package {missing.name}, which is not installed"
        print(f"PackageMissing: {needs}: run pip install 'consumer-fleet[plugin]'", file=sys.stderr)
        return EXIT_OPTIONS


def _run(options: Namespace) -> int:
    from fleet_kubectl.api import open_api

    command = _command(options.command)
    with closing(open_api(options.kubeconfig, options.context, options.namespace)) as api:
        code = command(api, options)
    sys.stdout.flush()
    return code


def _command(name: str) -> Callable[["Api", Namespace], int]:
    if name == "top":
        from fleet_kubectl.top import top

        return top
    if name == "support-bundle":
        from fleet_kubectl.bundle import support_bundle

        return support_bundle
    from fleet_kubectl import commands, runs_commands

    return {
        "status": commands.status,
        "explain": commands.explain,
        "failed": commands.failed,
        "logs": commands.logs,
        "redrive": runs_commands.redrive,
        "reset": runs_commands.reset,
    }[name]
