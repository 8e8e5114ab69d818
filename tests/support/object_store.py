"""An S3 store on loopback that keeps its objects as files of a temporary folder: versitygw."""

from __future__ import annotations

import http.client
import os
import shutil
import tempfile
from pathlib import Path
from typing import Final

from e2e.local_cluster.daemons import Daemon, free_ports
from e2e.local_cluster.gomodules import VERSITYGW, ensure_programs
from e2e.local_cluster.waiting import wait_until
from tests.support.lifetime import Server

__all__ = ["ObjectStore"]

ADDRESS: Final = "127.0.0.1"
START_TIMEOUT_S: Final = 60.0
HEALTH: Final = "/health"
REGION: Final = "us-east-1"


class ObjectStore(Server):
    """One bucket behind an HTTP endpoint, as a context manager; leaving it removes everything.

    The temporary folder must be on a file system with extended attributes, in which the store keeps objects'
    metadata. The port and the objects stay the same over `stop` and `start`. If the program is not in the cache yet,
    entering builds it, which takes two minutes.
    """

    bucket: Final = "lake"
    access_key: Final = "fleet-tests"
    secret_key: Final = "secret-of-fleet-tests"

    def __init__(self) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="fleet-object-store-"))
        self.folder = self.directory / "buckets" / self.bucket
        """The bucket's folder: an object is a file whose path is its key."""
        (self.port,) = free_ports(1, ADDRESS)
        program = ensure_programs(VERSITYGW) / "versitygw"
        # The keys are not on the command line, which everybody on the machine can read.
        keys = {"ROOT_ACCESS_KEY_ID": self.access_key, "ROOT_SECRET_ACCESS_KEY": self.secret_key}
        options = [f"--port={ADDRESS}:{self.port}", f"--region={REGION}", f"--health={HEALTH}", "--quiet"]
        self._daemon = Daemon(
            "versitygw",
            [str(program), *options, "posix", str(self.folder.parent)],
            log=self.directory / "versitygw.log",
            env={"PATH": os.environ["PATH"], "HOME": str(self.directory), **keys},
        )

    @property
    def endpoint(self) -> str:
        """The URL for S3 clients; the bucket is the first part of the path."""
        return f"http://{ADDRESS}:{self.port}"

    @property
    def environment(self) -> dict[str, str]:
        """The environment variables from which Amazon's clients read credentials."""
        return {"AWS_ACCESS_KEY_ID": self.access_key, "AWS_SECRET_ACCESS_KEY": self.secret_key}

    @property
    def settings(self) -> dict[str, str]:
        """Spark's settings for this endpoint. Without a region Hadoop would sign for another one than the store's."""
        own = {"endpoint": self.endpoint, "endpoint.region": REGION, "path.style.access": "true"}
        return {f"spark.hadoop.fs.s3a.{key}": value for key, value in own.items()}

    def url(self, key: str) -> str:
        """The address of an object, or of a folder of them, for Spark."""
        return f"s3a://{self.bucket}/{key}"

    def start(self) -> None:
        """Create the bucket if it is missing, start the store, and wait until it answers."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self._daemon.start()
        wait_until(
            self._answers,
            what=f"the object store at {self.endpoint} to start",
            timeout_s=START_TIMEOUT_S,
            last_seen=self._daemon.log_tail,
        )

    def stop(self) -> None:
        """Stop the store cleanly; its objects stay."""
        self._daemon.stop()

    def close(self) -> None:
        """End the store and remove its files."""
        self._daemon.kill()
        shutil.rmtree(self.directory, ignore_errors=True)

    def _answers(self) -> bool:
        self._daemon.check_running()
        connection = http.client.HTTPConnection(ADDRESS, self.port, timeout=5)
        try:
            connection.request("GET", HEALTH)
            return connection.getresponse().status == http.client.OK
        except OSError:
            return False
        finally:
            connection.close()
