"""The operator's settings: flags, each with a default from the environment (`--metrics-port` is FLEET_METRICS_PORT).

One frozen record is made at start and handed down; nothing else reads flags or environment variables.
"""

from __future__ import annotations

import argparse
import os
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Final, cast

from fleet_operator.runtime.lease import LEASE_NAME
from fleet_operator.runtime.logs import LogFormat

VERSION: Final = version("consumer-fleet")
BOUND_MAX: Final = 1_000_000
SERVICE_ACCOUNT_NAMESPACE: Final = "/var/run/secrets/kubernetes.io/serviceaccount/namespace"


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Everything a person can set. Ports: 0 takes a free one. `namespaces` empty means the whole cluster,
    and so does `canary_namespaces`."""

    namespaces: tuple[str, ...] = ()
    leader_elect: bool = False
    lease_namespace: str = "default"
    lease_name: str = LEASE_NAME
    identity: str = "operator"
    consumer_image: str = f"consumer-fleet-consumer:{VERSION}"
    spark_image: str = f"consumer-fleet-spark:{VERSION}"
    spark_driver_role: str = "consumer-fleet-spark-driver"
    max_concurrent_rollouts: int = 0
    canary_namespaces: tuple[str, ...] = ()
    upgrade_deadline_seconds: float = 3600.0
    force_upgrades: bool = False
    platform_assigns_users: bool = False
    workers: int = 24
    resync_seconds: float = 600.0
    sweep_seconds: float = 300.0
    status_writes_per_second: float = 5.0
    metrics_port: int = 8080
    health_port: int = 8081
    log_format: LogFormat = "json"
    log_level: str = "info"


def _default_namespace() -> str:
    """The pod's own namespace, or `default` outside a pod."""
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


def _port(text: str) -> int:
    if not text.isdigit() or int(text) > 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is not a port (0 to 65535)")
    return int(text)


def _count(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} must be a whole number of at least 1")
    return int(text)


def _bound(text: str) -> int:
    if not text.isdigit() or int(text) > BOUND_MAX:
        raise argparse.ArgumentTypeError(f"{text!r} must be a whole number from 0 to {BOUND_MAX}")
    return int(text)


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0.0 < value < 86_400.0:
        raise argparse.ArgumentTypeError(f"{text!r} must be seconds above 0 and below a day")
    return value


def parser(environ: Mapping[str, str]) -> argparse.ArgumentParser:
    """The command line, with its defaults from `environ`."""

    def env(name: str, default: object) -> str:
        return environ.get(f"FLEET_{name}", str(default))

    base = Settings()
    root = argparse.ArgumentParser(prog="fleet-operator", description="The operator of Consumer Fleet.")
    root.add_argument("--version", action="version", version=VERSION)
    commands = root.add_subparsers(dest="command", required=True)
    run = commands.add_parser("run", help="run the operator until SIGTERM")
    add = run.add_argument
    add("--namespace", action="append", metavar="NS", help="namespace to serve; may be repeated; default: all")
    add(
        "--leader-elect",
        nargs="?",
        const=True,
        type=_truth,
        default=env("LEADER_ELECT", "false"),
        help="work only while holding the Lease; default: %(default)s",
    )
    add("--lease-namespace", default=environ.get("FLEET_LEASE_NAMESPACE"), help="default: the pod's own")
    add("--lease-name", default=env("LEASE_NAME", base.lease_name), help="default: %(default)s")
    image = "image of %s that name none; default: %%(default)s"
    add("--consumer-image", default=env("CONSUMER_IMAGE", base.consumer_image), help=image % "workers")
    add("--spark-image", default=env("SPARK_IMAGE", base.spark_image), help=image % "Backfills")
    add(
        "--spark-driver-role",
        default=env("SPARK_DRIVER_ROLE", base.spark_driver_role),
        help="ClusterRole of the drivers of Backfills, for their executors; default: %(default)s",
    )
    _add_upgrades(add, env, base)
    add(
        "--platform-assigns-users",
        type=_truth,
        default=env("PLATFORM_ASSIGNS_USERS", "false"),
        help="pods ask for no user, as OpenShift gives them one; default: %(default)s",
    )
    add(
        "--workers",
        type=_count,
        default=env("WORKERS", base.workers),
        help="reconciles at once for each kind; default: %(default)s",
    )
    add(
        "--resync-seconds",
        type=_seconds,
        default=env("RESYNC_SECONDS", base.resync_seconds),
        help="seconds after which every object is reconciled again; default: %(default)s",
    )
    add(
        "--sweep-seconds",
        type=_seconds,
        default=env("SWEEP_SECONDS", base.sweep_seconds),
        help="seconds between comparisons of the caches with a list; default: %(default)s",
    )
    add(
        "--status-writes-per-second",
        type=_seconds,
        default=env("STATUS_WRITES_PER_SECOND", base.status_writes_per_second),
        help="budget of routine status writes; default: %(default)s",
    )
    shown = "default: %(default)s"
    add("--metrics-port", type=_port, default=env("METRICS_PORT", base.metrics_port), help=shown)
    add("--health-port", type=_port, default=env("HEALTH_PORT", base.health_port), help=shown)
    add("--log-format", choices=("json", "text"), default=env("LOG_FORMAT", base.log_format), help=shown)
    levels = ("debug", "info", "warning", "error")
    add("--log-level", choices=levels, default=env("LOG_LEVEL", base.log_level), help=shown)
    return root


def _add_upgrades(add: Callable[..., object], env: Callable[[str, object], str], base: Settings) -> None:
    add(
        "--max-concurrent-rollouts",
        type=_bound,
        default=env("MAX_CONCURRENT_ROLLOUTS", base.max_concurrent_rollouts),
        help="groups that go over to another worker image or connection at once; 0: images stay as they are; "
        "default: %(default)s",
    )
    add(
        "--canary-namespaces",
        default=env("CANARY_NAMESPACES", ""),
        help="namespaces, divided by commas, in which the label of canaries counts; default: all",
    )
    add(
        "--upgrade-deadline-seconds",
        type=_bound,
        default=env("UPGRADE_DEADLINE_SECONDS", int(base.upgrade_deadline_seconds)),
        help="longest time for which one group holds up the upgrades of others; 0: for good; default: %(default)s",
    )
    add(
        "--force-upgrades",
        type=_truth,
        default=env("FORCE_UPGRADES", "false"),
        help="upgrades wait for no canary and stop at no failure; default: %(default)s",
    )


def parse(arguments: Sequence[str], environ: Mapping[str, str] = os.environ) -> Settings:
    """Settings from a command line; exits with status 2 and a message when it is wrong, as argparse does."""
    found = parser(environ).parse_args(arguments)
    listed = environ.get("FLEET_NAMESPACE", "")
    return Settings(
        namespaces=tuple(found.namespace or _names(listed)),
        leader_elect=found.leader_elect,
        lease_namespace=found.lease_namespace or _default_namespace(),
        lease_name=found.lease_name,
        identity=f"{environ.get('POD_NAME') or socket.gethostname()}_{os.urandom(4).hex()}",
        consumer_image=found.consumer_image,
        spark_image=found.spark_image,
        spark_driver_role=found.spark_driver_role,
        max_concurrent_rollouts=found.max_concurrent_rollouts,
        canary_namespaces=_names(found.canary_namespaces),
        upgrade_deadline_seconds=float(found.upgrade_deadline_seconds),
        force_upgrades=found.force_upgrades,
        platform_assigns_users=found.platform_assigns_users,
        workers=found.workers,
        resync_seconds=found.resync_seconds,
        sweep_seconds=found.sweep_seconds,
        status_writes_per_second=found.status_writes_per_second,
        metrics_port=found.metrics_port,
        health_port=found.health_port,
        log_format=cast("LogFormat", found.log_format),
        log_level=found.log_level,
    )
