"""The run behind `make try`: flights in, cancelled ones retried and failed, then corrected and put back.

All totals come from the topics, counted by `e2e/demo/inside.py`, which shares no code with the workers.
Decision: docs/decisions/0067-first-run-and-quickstart.md.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Final

from e2e.cluster import ROOT
from e2e.demo import inside
from e2e.demo.fleet import EXAMPLE, Count
from e2e.demo.flights import first_flights
from e2e.laptop.shell import program, type_command
from e2e.laptop.workers import Workers
from e2e.local_cluster.steps import step
from e2e.local_cluster.waiting import wait_until
from fleet_consumer.net import ConnectionSettings, NetworkClient
from fleet_consumer.wire.groups import DescribeGroupsRequest

FLIGHTS: Final = 10_000
WORKERS: Final = 2
PARTITIONS: Final = 4
GROUP: Final = "try"
SOURCE, OUTPUT = "flights", "flights-done"
FAILED, REDRIVE = f"_fleet.{GROUP}.failed", f"_fleet.{GROUP}.redrive"
RETRIES: Final = (REDRIVE, f"_fleet.{GROUP}.retry.2s", f"_fleet.{GROUP}.retry.5s")
"""In the order in which a record passes through them, so that none is overlooked between two requests."""
POLICY: Final = "e2e/laptop/retries.yaml"
ANSWER_S: Final = 30.0
DRAINED_S: Final = 150.0
"""Limit of a wait for all records: more than three times the session timeout, after which a killed worker's partitions
have other owners."""


def adds_up(count: Count, *, given: int, failed: int) -> bool:
    """True if every flight ended: so many in the failed topic, all others in the output topic.

    Duplicates are no error: after a worker's death its uncommitted records are handled again.
    """
    wanted = (given, given - failed, failed, 0, 0)
    return (count.given, count.done, count.failed, count.lost, count.unknown) == wanted


class FirstRun:
    """The steps of a run with a broker that answers at `bootstrap`; its files are in `folder`."""

    def __init__(self, folder: Path, bootstrap: str) -> None:
        self._folder = folder
        self._bootstrap = bootstrap
        self._handler = folder / "handler.py"
        self._given, self._cancelled = 0, 0

    def play(self) -> bool:
        """Run all steps; True if both totals add up. Raises Failed and ClusterError."""
        rows = self._folder / "flights.csv.gz"
        flights, self._cancelled = first_flights(FLIGHTS)
        rows.write_bytes(flights)
        self._given = FLIGHTS
        shutil.copy(EXAMPLE / "handler.py", self._handler)
        type_command([*self.tool(), "create-topics", SOURCE, OUTPUT, f"--partitions={PARTITIONS}"])
        with self._workers():
            type_command([*self.tool(), "produce", "--topic", SOURCE], stdin=rows)
            self._wait_drained("all flights, with the retries of cancelled ones")
        print(f"\n{self._cancelled} flights were cancelled, and the handler raises an error for each.", flush=True)
        self._show_failed()
        before = self._count()
        print("\nThe corrected handler accepts cancelled flights. The failed ones are put back:", flush=True)
        self._correct()
        with self._workers():
            type_command(self.fleet_consumer("redrive", "--error-class", "ValueError"))
            self._wait_drained("the flights that were put back")
        after = self._count()
        totals = adds_up(before, given=self._given, failed=self._cancelled), adds_up(after, given=self._given, failed=0)
        print(f"\n{before.line('try')}\n{after.line('try, redriven')}", flush=True)
        return all(totals)

    def tool(self) -> list[str]:
        """The command for topics, flights and totals, without its subcommand."""
        return [program("python"), "e2e/demo/inside.py", "--bootstrap", self._bootstrap]

    def fleet_consumer(self, *words: str) -> list[str]:
        """A command of `fleet-consumer` about the run's group."""
        return [program("fleet-consumer"), *words, "--group", GROUP, "--bootstrap", self._bootstrap]

    def worker(self) -> list[str]:
        """The command of one worker."""
        consumed = ["--topic", SOURCE, "--output", OUTPUT, "--decode-value", "Json", "--retry-policy", POLICY]
        return [*self.fleet_consumer("run", "--local", str(self._handler)), *consumed]

    def counting(self) -> list[str]:
        """The command that counts the flights in the topics."""
        topics = ["--topic", SOURCE, "--output", OUTPUT, "--failed", FAILED, "--redrive", REDRIVE]
        return [*self.tool(), "count", *topics]

    @contextmanager
    def _workers(self) -> Iterator[None]:
        """The workers, once all are members of the group, until the end of the block; then stopped in order."""
        workers = Workers(self._folder, self.worker(), WORKERS)
        self._running = workers
        try:
            workers.start()
            with step(f"{WORKERS} workers join the group {GROUP}"):
                wait_until(self._joined, what=f"{WORKERS} members", timeout_s=DRAINED_S, interval_s=0.2)
            yield
            workers.stop()
        finally:
            workers.kill()

    def _joined(self) -> bool:
        self._running.check()
        settings = ConnectionSettings(bootstrap_servers=(self._bootstrap,), client_id=GROUP)
        with closing(NetworkClient(settings)) as client:
            client.metadata(timeout_s=ANSWER_S)
            (broker,) = client.brokers.values()  # the only one, so it is every group's coordinator
            described = client.call(broker, DescribeGroupsRequest(groups=(GROUP,)), timeout_s=ANSWER_S)
        return sum(len(group.members) for group in described.groups) >= WORKERS

    def _wait_drained(self, what: str) -> None:
        with step(f"handled: {what}") as current:

            def drained() -> bool:
                self._running.check()
                lag = self._ask("lag", "--topic", SOURCE, "--group", GROUP)["lag"]
                waiting = self._ask("waiting", "--group", f"{GROUP}.retry", *RETRIES)["waiting"]
                current.note = f"{lag} not committed, {waiting} wait for a retry"
                return bool(lag == 0 and waiting == 0)

            wait_until(drained, what=what, timeout_s=DRAINED_S, interval_s=1.0, last_seen=lambda: current.note)

    def _ask(self, *arguments: str) -> dict[str, Any]:
        """A result of the tool without a process of its own, for polls."""
        options = inside.parsed(["--bootstrap", self._bootstrap, *arguments])
        found: dict[str, Any] = options.run(options)
        return found

    def _show_failed(self) -> None:
        """Count the failed records, and show the first one with its headers."""
        type_command(self.fleet_consumer("failed", "count"))
        place = type_command(self.fleet_consumer("failed", "list", "--limit", "1")).split()[0]
        type_command(self.fleet_consumer("failed", "show", place))

    def _correct(self) -> None:
        fixed = (EXAMPLE / "fixed" / "handler.py").relative_to(ROOT)
        type_command(["cp", str(fixed), str(self._handler)])

    def _count(self) -> Count:
        found = json.loads(type_command(self.counting()))
        del found["repeated"]
        return Count(given=found.pop("in"), **found)
