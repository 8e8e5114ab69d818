"""The event log of a Backfill: written next to the results, and shown by Spark's own history server."""

from __future__ import annotations

import json
import os
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from e2e.local_cluster.daemons import Daemon, free_ports
from tests.spark.scene import Place, Scene
from tests.support.waiting import eventually

pytestmark = pytest.mark.together

ADDRESS = "127.0.0.1"


@contextmanager
def history_server(place: Place, events: Path, folder: Path) -> Iterator[str]:
    """The URL of the API of Spark's history server over this folder."""
    (port,) = free_ports(1, ADDRESS)
    settings = {"fs.logDirectory": events.as_uri(), "ui.port": str(port), "fs.update.interval": "1s"}
    options = " ".join(f"-Dspark.history.{name}={value}" for name, value in settings.items())
    # Spark's script finds Spark by the first Python on the path.
    own = {"PATH": f"{place.python.parent}:{os.environ['PATH']}", "HOME": str(folder), "SPARK_LOCAL_IP": ADDRESS}
    command = ["spark-class", "org.apache.spark.deploy.history.HistoryServer"]
    log = folder / "history.log"
    server = Daemon("history-server", command, log=log, env={**own, "SPARK_HISTORY_OPTS": options})
    server.start()
    try:
        eventually(lambda: "Bound HistoryServer" in server.log_tail() or not server.running, what="the history server")
        assert server.running, server.log_tail()
        yield f"http://{ADDRESS}:{port}/api/v1"
    finally:
        server.kill()


def fetched(url: str) -> Any:
    with urllib.request.urlopen(url, timeout=10) as response:
        return json.load(response)


def test_history_server_shows_a_run_by_the_log_next_to_its_results(place: Place, tmp_path: Path) -> None:
    with Scene(place, tmp_path) as scene:
        scene.send(4)
        scene.run(sink=scene.parquet, eventLog=True)
        events = scene.sink / "_fleet" / "events"
        with history_server(place, events, tmp_path) as api:
            (run,) = eventually(lambda: fetched(f"{api}/applications"), what="the run is listed")
            assert [each["completed"] for each in run["attempts"]] == [True]
            jobs = fetched(f"{api}/applications/{run['id']}/jobs")
        assert {job["status"] for job in jobs} == {"SUCCEEDED"}, jobs
