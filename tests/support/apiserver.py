"""A real Kubernetes API server (with its etcd) on loopback, without nodes or controllers.

Enough for everything decided at the API: schemas, CEL rules, server-side apply, leases, watches, RBAC. Nothing acts on
the objects: no pod starts, no owner reference is collected, a deleted namespace stays Terminating.
"""

import os
import shutil
import tempfile
from pathlib import Path

from e2e.local_cluster.commands import run
from e2e.local_cluster.control_plane import (
    GO_SETTINGS,
    ApiServerSettings,
    api_server_names,
    etcd_command,
    kube_apiserver_command,
)
from e2e.local_cluster.daemons import Daemon, free_ports
from e2e.local_cluster.errors import ClusterError
from e2e.local_cluster.gomodules import ETCD, KUBERNETES, ensure_programs
from e2e.local_cluster.kubeconfig import write_kubeconfig
from e2e.local_cluster.pki import Authority
from e2e.local_cluster.waiting import wait_until
from tests.support.lifetime import Server

__all__ = ["ApiServer"]

ADDRESS = "127.0.0.1"
START_TIMEOUT_S = 60.0


class ApiServer(Server):
    """etcd and kube-apiserver with a certificate authority of their own, as a context manager.

    ``kubeconfig`` is the path of an administrator's kubeconfig (group system:masters). The servers keep their ports and
    data over ``stop`` and ``start``; leaving the context removes everything. If the programs are not in the cache yet,
    entering builds them, which takes minutes.
    """

    def __init__(self) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="fleet-apiserver-"))
        self.kubeconfig = self.directory / "admin.conf"
        etcd = ensure_programs(ETCD) / "etcd"
        kubernetes = ensure_programs(KUBERNETES)
        self._kubectl = kubernetes / "kubectl"
        client_port, peer_port, self.port = free_ports(3, ADDRESS)
        self._authority = Authority(self.directory / "pki")
        etcd_url = f"http://{ADDRESS}:{client_port}"
        self.etcd = Daemon(
            "etcd",
            etcd_command(
                etcd, data=self.directory / "etcd", client_url=etcd_url, peer_url=f"http://{ADDRESS}:{peer_port}"
            ),
            log=self.directory / "etcd.log",
            env={**os.environ, **GO_SETTINGS},
        )
        self.server = Daemon(
            "kube-apiserver",
            kube_apiserver_command(
                ApiServerSettings(
                    program=kubernetes / "kube-apiserver",
                    authority=self._authority,
                    etcd_url=etcd_url,
                    bind_address=ADDRESS,
                    port=self.port,
                    advertise_address=ADDRESS,
                    with_controllers=False,
                )
            ),
            log=self.directory / "kube-apiserver.log",
            env={**os.environ, **GO_SETTINGS},
        )

    @property
    def url(self) -> str:
        """The API server's URL."""
        return f"https://{ADDRESS}:{self.port}"

    def start(self) -> None:
        """Start both servers and wait until the API server is ready for every kind of request."""
        if not self.kubeconfig.exists():
            self._issue_certificates()
        self.etcd.start()
        self.server.start()
        wait_until(
            self._ready,
            what=f"the API server at {self.url} to be ready",
            timeout_s=START_TIMEOUT_S,
            last_seen=self.server.log_tail,
        )

    def stop(self) -> None:
        """End both servers; ports and data stay for the next ``start``."""
        self.server.stop()
        self.etcd.stop()

    def close(self) -> None:
        """End both servers and remove their files."""
        self.server.kill()
        self.etcd.kill()
        shutil.rmtree(self.directory, ignore_errors=True)

    def kubectl(self, *args: str, input: str | None = None) -> str:  # noqa: A002 - the word of subprocess.run
        """Run kubectl as administrator and return its output; raises ClusterError with its error."""
        command = [str(self._kubectl), "--kubeconfig", str(self.kubeconfig), *args]
        return run(command, reason="KubectlFailed", stdin=input, env=self._environment())

    def _issue_certificates(self) -> None:
        self._authority.ensure()
        self._authority.issue("apiserver", "kube-apiserver", names=api_server_names(ADDRESS))
        self._authority.issue("apiserver-kubelet", "kube-apiserver-kubelet-client", group="system:masters")
        self._authority.issue("admin", "admin", group="system:masters")
        write_kubeconfig(self.kubeconfig, server=self.url, authority=self._authority, name="admin")

    def _environment(self) -> dict[str, str]:
        # kubectl caches discovery below HOME by server address, and another test's server may reuse the port.
        return {**os.environ, "HOME": str(self.directory)}

    def _ready(self) -> bool:
        self.etcd.check_running()
        self.server.check_running()
        try:
            # /readyz answers before the first namespaces exist, and a test may use one in its first request.
            return self.kubectl("get", "--raw", "/readyz") == "ok" and bool(self.kubectl("get", "namespace", "default"))
        except ClusterError:
            return False
