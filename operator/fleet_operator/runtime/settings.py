"""The operator's settings: flags, each with a default from the environment (FLEET_METRICS_PORT for `--metrics-port`).

The settings are read once at the start, into a frozen object. No other code reads flags or environment variables.
"""

import argparse
import os
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any, Final, get_origin, get_type_hints

from fleet_operator.runtime.lease import LEASE_NAME
from fleet_operator.runtime.logs import LogFormat

VERSION: Final = version("consumer-fleet")
BOUND_MAX: Final = 1_000_000
SERVICE_ACCOUNT_NAMESPACE: Final = "/var/run/secrets/kubernetes.io/serviceaccount/namespace"


def _default_namespace() -> str:
    path = Path(SERVICE_ACCOUNT_NAMESPACE)
    return path.read_text(encoding="utf-8").strip() if path.exists() else "default"


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())


def _truth(text: str) -> bool:
    words = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}
    try:
        return words[text.strip().lower()]
    except KeyError:
        raise argparse.ArgumentTypeError(f"{text!r} is neither true nor false") from None


def _number(text: str, *, least: int = 0, most: int = BOUND_MAX) -> int:
    if not text.isdigit() or not least <= int(text) <= most:
        raise argparse.ArgumentTypeError(f"{text!r} must be a whole number from {least} to {most}")
    return int(text)


_count: Final = partial(_number, least=1)
_port: Final = partial(_number, most=65_535)


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0.0 < value < 86_400.0:
        raise argparse.ArgumentTypeError(f"{text!r} must be a number of seconds above 0 and below 86400")
    return value


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """All settings of the operator. Port 0 means a free port; empty `namespaces` or `canary_namespaces` mean all.

    Several releases that serve disjoint namespaces can share the load. Conflicting claims on a Kafka group are then not
    detected between namespaces of different releases, because no release watches all ConsumerGroups.
    """

    namespaces: tuple[str, ...] = ()
    leader_elect: Annotated[bool, _truth, "run only while this process holds the Lease"] = False
    lease_namespace: Annotated[str, str, "default: the pod's namespace"] = "default"
    lease_name: Annotated[str, str, ""] = LEASE_NAME
    identity: str = "operator"
    consumer_image: Annotated[str, str, "worker image of ConsumerGroups without spec.image"] = (
        f"consumer-fleet-consumer:{VERSION}"
    )
    spark_image: Annotated[str, str, "image of Backfills without spec.image"] = f"consumer-fleet-spark:{VERSION}"
    spark_driver_role: Annotated[str, str, "ClusterRole with which Backfill drivers manage their executors"] = (
        "consumer-fleet-spark-driver"
    )
    max_concurrent_rollouts: Annotated[
        int,
        _number,
        "maximum number of groups that change image or connection at the same time; 0: images do not change",
    ] = 0
    canary_namespaces: Annotated[
        tuple[str, ...], _names, "comma-separated namespaces in which the canary label is honored; default: all"
    ] = ()
    upgrade_deadline_seconds: Annotated[
        float, _number, "longest time in seconds for which one group may delay upgrades of other groups; 0: no limit"
    ] = 3600
    force_upgrades: Annotated[bool, _truth, "do not wait for canaries and do not stop after failures"] = False
    platform_assigns_users: Annotated[bool, _truth, "set no user id in pods, because OpenShift assigns one"] = False
    backfills: Annotated[bool, _truth, "serve Backfills; if false, their CRD may be missing"] = True
    workers: Annotated[int, _count, "concurrent reconciles of each kind"] = 24
    resync_seconds: Annotated[float, _seconds, "seconds after which every object is reconciled again"] = 600.0
    sweep_seconds: Annotated[float, _seconds, "seconds between two comparisons of the caches with new lists"] = 300.0
    status_writes_per_second: Annotated[float, _seconds, "maximum number of routine status writes per second"] = 5.0
    console: Annotated[bool, _truth, "serve the console, a read-only web page about fleets"] = False
    console_port: Annotated[int, _port, ""] = 8082
    metrics_port: Annotated[int, _port, ""] = 8080
    health_port: Annotated[int, _port, ""] = 8081
    log_format: Annotated[LogFormat, ("json", "text"), ""] = "json"
    log_level: Annotated[str, ("debug", "info", "warning", "error"), ""] = "info"


FLAGS: Final = {
    name: hint.__metadata__
    for name, hint in get_type_hints(Settings, include_extras=True).items()
    if get_origin(hint) is Annotated
}
"""The flags, keyed by field: the type or the choices, and the help text."""


def parser(environ: Mapping[str, str]) -> argparse.ArgumentParser:
    base = Settings(lease_namespace="")
    root = argparse.ArgumentParser(prog="fleet-operator", description="The operator of Consumer Fleet.")
    root.add_argument("--version", action="version", version=VERSION)
    commands = root.add_subparsers(dest="command", required=True)
    run = commands.add_parser("run", help="run the operator until SIGTERM")
    run.add_argument(
        "--namespace", action="append", metavar="NS", help="namespace to serve; may be repeated; default: all"
    )
    for name, (kind, text) in FLAGS.items():
        default = environ.get(f"FLEET_{name.upper()}", getattr(base, name))
        how: dict[str, Any] = {"choices": kind} if isinstance(kind, tuple) else {"type": kind}
        if name == "leader_elect":
            how |= {"nargs": "?", "const": True}
        if "default:" not in text:
            text = "; ".join(filter(None, (text, "default: %(default)s")))
        shown = str(default).lower() if isinstance(default, bool) else default
        run.add_argument(f"--{name.replace('_', '-')}", default=shown, help=text, **how)
    return root


def parse(arguments: Sequence[str], environ: Mapping[str, str] = os.environ) -> Settings:
    """Parse a command line. If it is invalid, the process exits with status 2 and a message, as argparse does."""
    found = vars(parser(environ).parse_args(arguments))
    given = {name: found[name] for name in FLAGS}
    given["lease_namespace"] = given["lease_namespace"] or _default_namespace()
    return Settings(
        **given,
        namespaces=tuple(found["namespace"] or _names(environ.get("FLEET_NAMESPACE", ""))),
        identity=f"{environ.get('POD_NAME') or socket.gethostname()}_{os.urandom(4).hex()}",
    )
