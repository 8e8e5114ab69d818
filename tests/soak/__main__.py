"""`python -m tests.soak`: random joins, leaves, kills, stops and broker bounces under load, and their judgement.

Ends with status 0 only if nothing was lost, every repetition is explained, no member ended unasked and none grew.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bench.report import versions
from tests.soak.fleet import Fleet
from tests.soak.growth import growth
from tests.soak.schedule import Action, Bounce, Join, Kill, Leave, Sleep, World, choose
from tests.support.kafka_cluster import KafkaCluster
from tests.support.ownership import Verdict, judge
from tests.support.waiting import eventually
from tests.support.writing import Writer

RESULT = Path(__file__).resolve().parents[2] / "bench" / "results" / "soak.json"
TOPIC, GROUP = "soak", "soak"
TICK_S = 0.2
LINE_EVERY_S = 10.0
PAUSE_S = (2.0, 8.0)
LEAST, MOST = 1, 5
"""The most members that come and go next to the anchors."""
SESSION_MS = 6_000
GROWTH_MIB = 16.0
"""The tolerance for librdkafka's queues and the allocator from one third of the time to the next."""
DRAIN_S = 180.0


class Soak:
    """One run; `run` returns what is recorded."""

    def __init__(self, options: argparse.Namespace, cluster: KafkaCluster, folder: Path) -> None:
        self._options = options
        self._cluster = cluster
        self._chance = random.Random(options.seed)
        self._began = time.monotonic()
        self._over = threading.Event()
        self._bouncer = ThreadPoolExecutor(1)
        self._bounce: Future[None] | None = None
        self._bounces: Counter[str] = Counter()
        self._away = ""
        self._last = ""
        cluster.create_topic(TOPIC, options.partitions)
        self._writer = Writer(cluster.bootstrap, TOPIC, options.partitions, per_second=options.rate)
        changes = {"session_timeout_ms": SESSION_MS, "assignors": [options.assignor]}
        self._fleet = Fleet(folder, cluster.bootstrap, GROUP, TOPIC, **changes)
        for _ in range(LEAST):
            self._fleet.join(None)

    def run(self) -> dict[str, Any]:
        """Inject faults for the given time, then heal, drain and judge."""
        deadline = self._began + self._options.minutes * 60
        act_at, line_at = self._began + PAUSE_S[1], self._began
        while time.monotonic() < deadline and not self._over.wait(TICK_S):
            now = time.monotonic()
            self._fleet.tick()
            if now >= line_at:
                line_at = now + LINE_EVERY_S
                self._fleet.sample(now - self._began)
                print(self._line(now), flush=True)
            if now >= act_at:
                act_at = now + self._chance.uniform(*PAUSE_S)
                self._act()
        ran_s = time.monotonic() - self._began
        verdict = self._end()
        return self._result(verdict, ran_s)

    def close(self) -> None:
        """End everything that was started, whatever its state; the cluster's owner ends the cluster."""
        self._over.set()
        self._fleet.close()
        self._writer.__exit__()
        self._bouncer.shutdown()

    def _act(self) -> None:
        fleet, busy = self._fleet, self._bounce is not None and not self._bounce.done()
        if self._bounce is not None and self._bounce.done():
            self._bounce.result()
        nodes = () if busy else tuple(self._cluster.brokers)
        action = choose(self._chance, World(fleet.awake, fleet.asleep, fleet.vacant, nodes, LEAST, MOST))
        self._last = str(action)
        self._carry_out(action)

    def _carry_out(self, action: Action | None) -> None:
        match action:
            case Join(instance_id):
                self._fleet.join(instance_id)
            case Leave(member):
                self._fleet.leave(member)
            case Kill(member):
                self._fleet.kill(member)
            case Sleep(member, seconds):
                self._fleet.sleep(member, seconds)
            case Bounce():
                self._bounces[action.how] += 1
                self._bounce = self._bouncer.submit(self._bounced, action)
            case None:
                pass

    def _bounced(self, action: Bounce) -> None:
        broker = self._cluster.brokers[action.node]
        self._away = f"broker {action.node}: {action.how}"
        {"stop": broker.stop, "kill": broker.kill, "pause": broker.pause}[action.how]()
        self._over.wait(action.seconds)
        if self._over.is_set():
            return
        self._away += ", back"
        if action.how == "pause":
            broker.resume()
        else:
            broker.start()
        # The next one goes only when this one has caught up: two away at once would stop all writing.
        self._cluster.await_in_sync(120)
        self._away = ""

    def _end(self) -> Verdict:
        print("healing, draining, judging", flush=True)
        self._fleet.wake_all()
        if self._bounce is not None:
            self._bounce.result()
        written = self._writer.stop(120)

        def drained() -> bool:
            self._fleet.tick()
            verdict = judge(self._fleet.histories(), written)
            assert not verdict.lost_count, str(verdict)
            return True

        try:
            eventually(drained, timeout_s=DRAIN_S, what="every record to be handed out", poll_s=1.0)
        except AssertionError as error:
            self._fleet.findings.append(str(error)[:500])
        self._growths = {name: growth(self._fleet.samples(name)) for name in self._fleet.anchors}
        self._fleet.stop()
        return judge(self._fleet.histories(), written)

    def _line(self, now: float) -> str:
        verdict = judge(self._fleet.histories(), {})
        sizes = [samples[-1] for name in self._fleet.anchors if (samples := self._fleet.samples(name))]
        return (
            f"{now - self._began:6.0f} s  {self._writer.acknowledged:>9,} written  {verdict.handed:>9,} handed out "
            f"({verdict.duplicates:,} again)  "
            f"{len(self._fleet.processes)} members ({len(self._fleet.asleep)} stopped)  "
            f"anchors {'/'.join(f'{each.rss_mib:.0f}' for each in sizes)} MiB "
            f"{'/'.join(str(each.threads) for each in sizes)} threads  {self._away or self._last}"
        )

    def _result(self, verdict: Verdict, ran_s: float) -> dict[str, Any]:
        findings = [*verdict.lost, *verdict.unexplained, *verdict.overlaps, *self._fleet.findings]
        for name, grown in self._growths.items():
            if grown is not None:
                findings += [f"{name}: {excess}" for excess in grown.excess(GROWTH_MIB)]
        reasons = Counter(error.split(":")[0] for life in self._fleet.histories() for error in life.errors)
        return {
            "benchmark": "soak",
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            "good": not findings,
            "findings": findings,
            "seed": self._options.seed,
            "minutes": round(ran_s / 60, 2),
            "assignor": self._options.assignor,
            "records_per_second_asked": self._options.rate,
            "records_written": self._writer.acknowledged,
            "records_per_second_written": round(self._writer.acknowledged / ran_s),
            "records_handed_out": verdict.handed,
            "lost": verdict.lost_count,
            "handed_out_again": verdict.duplicates,
            "of_these_never_committed_before": verdict.explained,
            "refused_commits": dict(verdict.refused_commits),
            "members": len(self._fleet.histories()),
            "done_to_members": dict(self._fleet.done),
            "done_to_brokers": dict(self._bounces),
            "errors_told_by_poll": dict(reasons),
            "growth_of_anchors": {name: asdict(each) if each else None for name, each in self._growths.items()},
            "growth_allowed_mib": GROWTH_MIB,
            "versions": versions(),
            "machine": f"{os.cpu_count()} cores, three brokers on the same machine",
        }


def main(arguments: Sequence[str]) -> int:
    """Run the soak, print and record the result."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--seed", type=int, default=random.randrange(2**32))
    parser.add_argument("--rate", type=int, default=5_000, help="records per second")
    parser.add_argument("--partitions", type=int, default=12)
    parser.add_argument("--assignor", default="cooperative-sticky")
    parser.add_argument("--result", type=Path, default=RESULT, help="where the figures go, as JSON")
    options = parser.parse_args(arguments)
    print(f"seed {options.seed}", flush=True)
    with tempfile.TemporaryDirectory(prefix="fleet-soak-") as folder, KafkaCluster() as cluster:
        soak = Soak(options, cluster, Path(folder))
        try:
            result = soak.run()
        except KeyboardInterrupt:
            print("stopped; nothing is recorded", flush=True)
            return 130
        finally:
            soak.close()
    options.result.parent.mkdir(parents=True, exist_ok=True)
    options.result.write_text(json.dumps(result, indent=2) + "\n")
    print(json.dumps(result, indent=2))
    return 0 if result["good"] else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
