"""Library and local runs on systems without Linux's calls, simulated: what Windows and macOS lack is taken away.

Python's documentation names these calls as available on Unix only, or on some of them. Dependencies have wheels for
both systems and are imported before.
"""

from __future__ import annotations

import subprocess
import sys

import pytest

SCRIPT = """
import asyncio, asyncio.subprocess, concurrent.futures, http.server, importlib, logging.handlers, multiprocessing
import os, pkgutil, select, selectors, shutil, signal, socket, ssl, subprocess, sys, tempfile, threading, time
import urllib.request
import aiohttp, confluent_kafka, prometheus_client, re2
import prometheus_client.exposition

platform, lacks = sys.argv[1], {
    "darwin": {"time": ["CLOCK_BOOTTIME"], "select": ["epoll"], "os": ["sched_getaffinity"]},
    "win32": {
        "time": ["CLOCK_BOOTTIME", "CLOCK_MONOTONIC", "clock_gettime"],
        "select": ["epoll", "poll"],
        "os": ["fork", "register_at_fork", "sched_getaffinity", "getuid", "geteuid", "getpgid", "killpg", "setsid"],
        "signal": ["SIGKILL", "SIGUSR1", "SIGUSR2", "SIGHUP", "pthread_kill", "pthread_sigmask", "siginterrupt"],
        "socket": ["AF_UNIX"],
    },
}
for module, names in lacks[platform].items():
    for name in names:
        delattr(sys.modules[module], name)
sys.platform = platform


def connected_pair():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return socket.create_connection(listener.getsockname()), listener.accept()[0]


if platform == "win32":
    socket.socketpair = connected_pair  # as Python does it there
    os.environ["USERNAME"] = "ann"  # as Windows sets it
for name in ("fcntl", "resource", "pwd", "grp", "termios") if platform == "win32" else ():
    sys.modules[name] = None

import fleet_consumer
for found in pkgutil.walk_packages(fleet_consumer.__path__, "fleet_consumer."):
    if not found.name.startswith("fleet_consumer.backfill"):
        importlib.import_module(found.name)
for name in fleet_consumer.__all__:
    getattr(fleet_consumer, name)

from fleet_consumer.clock import SystemClock
clock = SystemClock()
assert clock.monotonic() <= clock.monotonic()

from fleet_consumer import ConnectionSettings, Consumer, ConsumerSettings
with socket.create_server(("127.0.0.1", 0)) as unanswering:
    address = "127.0.0.1:%d" % unanswering.getsockname()[1]
    connection = ConnectionSettings(bootstrap_servers=(address,), client_id="c")
    with Consumer(ConsumerSettings(connection=connection, group_id="g")) as consumer:
        consumer.subscribe(["orders"])
        consumer.poll(0.2)

from fleet_consumer.worker.cli import main
handler = os.path.join(sys.argv[2], "handler.py")
open(handler, "w").write("def handle(record):\\n    pass\\n")
raise SystemExit(main(["run", "--local", handler, "--topic", "orders", "--bootstrap", "127.0.0.1:1"]))
"""
EXIT_SURROUNDINGS = 21


@pytest.mark.parametrize("platform", ["darwin", "win32"])
def test_library_and_local_runs_need_nothing_that_only_linux_has(
    platform: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = str(tmp_path_factory.mktemp("handler"))
    command = [sys.executable, "-X", "faulthandler", "-c", SCRIPT, platform, folder]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert ran.returncode == EXIT_SURROUNDINGS, ran.stderr[-3000:]
    assert "127.0.0.1:1" in ran.stderr, "the absent broker is named"
    assert "Traceback" not in ran.stderr
