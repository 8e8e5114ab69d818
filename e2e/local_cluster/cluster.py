"""One embedded cluster, seen from its host: started, given images, removed.

``up`` never assumes that the last one ended well. It checks each part and repairs it if necessary, also after a crash
of an earlier ``up`` or of a component. State is in etcd and in containerd's folder and survives that; for Kubernetes it
is a node that was switched off and on again.
"""

import json
import os
import shutil
import sys
from contextlib import AbstractContextManager
from datetime import UTC, datetime
from pathlib import Path

from e2e.local_cluster import gomodules
from e2e.local_cluster.access import ClusterAccess, condition_holds
from e2e.local_cluster.cache import file_lock
from e2e.local_cluster.cgroups import create_cgroup, remove_cgroup
from e2e.local_cluster.commands import run
from e2e.local_cluster.control_plane import DNS_SERVICE_ADDRESS
from e2e.local_cluster.errors import ClusterError
from e2e.local_cluster.gomodules import ensure_programs
from e2e.local_cluster.instance import CHECKOUT, Instance
from e2e.local_cluster.namespace import end_namespace, enter_command, find_first_process, start_namespace
from e2e.local_cluster.network import Link, attach, detach, link_exists, reserve_link
from e2e.local_cluster.node_files import NODE_NAME
from e2e.local_cluster.node_state import NodeSettings, NodeState
from e2e.local_cluster.packages import CLUSTER_PROGRAMS, cni_programs, ensure_programs_installed
from e2e.local_cluster.program_images import COREDNS_IMAGE, PAUSE_IMAGE, coredns_archive, pause_archive
from e2e.local_cluster.steps import step
from e2e.local_cluster.waiting import wait_until

__all__ = ["LocalCluster"]

NODE_TIMEOUT_S = 180.0
DNS_TIMEOUT_S = 60.0


class LocalCluster:
    """The embedded cluster of one instance."""

    def __init__(self, instance: Instance) -> None:
        self.instance = instance
        self.access = ClusterAccess(instance.kubeconfig)

    def up(self) -> None:
        """Bring the cluster up, until its node is ready and its name service answers.

        Raises ClusterError: ``NotRoot``, ``MissingPrograms``, ``StartFailed``, ``TimedOut``, and those of the builds.
        """
        _require_root()
        ensure_programs_installed(CLUSTER_PROGRAMS)
        # Building takes minutes and changes only the cache, so it does not lock the cluster.
        for module in (gomodules.ETCD, gomodules.KUBERNETES):
            ensure_programs(module)
        pause_archive()
        coredns_archive()
        with self._locked():
            self.instance.directory.mkdir(parents=True, exist_ok=True)
            link = reserve_link(self.instance)
            settings = self._settings(link)
            complaint = self._complaint(settings)
            if complaint:
                with step(f"start cluster {self.instance.name}: {complaint}"):
                    self._start_node(settings, link)
            with step("node ready"):
                self._wait_for_node()
            with step("name service answers"):
                self._ensure_dns()

    def down(self) -> None:
        """End the cluster and remove all of it: processes, mounts, link, control groups, files."""
        _require_root()
        with self._locked(), step(f"remove cluster {self.instance.name}"):
            end_namespace(self.instance)
            detach(self.instance)
            remove_cgroup(self.instance.cgroup)
            if self.instance.directory.exists():
                _remove_tree(self.instance.directory)
            self.instance.lock.unlink(missing_ok=True)

    def load_image(self, archive: Path, *, fingerprint: str | None = None) -> list[str]:
        """Import an image archive (docker or OCI) and return the images' full names.

        With a ``fingerprint`` the import is skipped if the node already has an archive with the same one. Raises
        ClusterError (``NotRunning``, ``ImportFailed``).
        """
        if fingerprint and self.has_image(fingerprint):
            return self._marker(fingerprint).read_text().split()
        command = ["ctr", "--namespace", "k8s.io", "images", "import", str(archive.absolute())]
        printed = run(enter_command(self.instance, command), reason="ImportFailed")
        names = [line.split()[1] for line in printed.splitlines() if line.startswith("unpacking ")]
        if fingerprint:
            self._marker(fingerprint).parent.mkdir(exist_ok=True)
            self._marker(fingerprint).write_text("\n".join(names))
        return names

    def has_image(self, fingerprint: str) -> bool:
        """True if an archive with this fingerprint was loaded; the record is kept, and removed, with the images."""
        return self._marker(fingerprint).exists()

    def _marker(self, fingerprint: str) -> Path:
        return self.instance.directory / "images" / fingerprint

    def _locked(self) -> AbstractContextManager[None]:
        return file_lock(self.instance.lock, purpose=f"changing cluster {self.instance.name}")

    def _settings(self, link: Link) -> NodeSettings:
        return NodeSettings(
            etcd_programs=str(ensure_programs(gomodules.ETCD)),
            kubernetes_programs=str(ensure_programs(gomodules.KUBERNETES)),
            cni_programs=str(cni_programs()),
            pause_archive=str(pause_archive()),
            pause_image=PAUSE_IMAGE,
            host_address=link.host,
            node_address=link.node,
            cgroup=self.instance.cgroup,
        )

    def _complaint(self, settings: NodeSettings) -> str | None:
        """The reason to start the node; None if it runs as it should."""
        if find_first_process(self.instance) is None:
            return "it was running and is not any more" if self.instance.state_file.exists() else "it is new"
        state = NodeState.read(self.instance.state_file)
        if state is None or state.phase != "running":
            return "its last start was not finished"
        if state.ended:
            return f"{', '.join(state.ended)} ended"
        if not link_exists(self.instance):
            return "its link is gone"
        if NodeSettings.read(self.instance.settings_file) != settings:
            return "its settings changed"
        return None

    def _start_node(self, settings: NodeSettings, link: Link) -> None:
        end_namespace(self.instance)
        detach(self.instance)
        # No process of the last run is alive, so all groups are empty: the kubelet creates new ones.
        remove_cgroup(self.instance.cgroup)
        create_cgroup(self.instance.cgroup)
        settings.write(self.instance.settings_file)
        self.instance.state_file.unlink(missing_ok=True)
        attach(self.instance, link, start_namespace(self.instance))
        wait_until(
            self._started,
            what=f"the components of cluster {self.instance.name} (logs in {self.instance.logs})",
            timeout_s=NODE_TIMEOUT_S,
        )

    def _started(self) -> bool:
        alive = find_first_process(self.instance) is not None
        state = NodeState.read(self.instance.state_file)
        if state and state.error:
            hint = "if it fails again, `down` and then `up` begin from nothing"
            raise ClusterError("StartFailed", f"{state.error}\n{hint}")
        if not alive:
            log = self.instance.logs / "inside.log"
            tail = "\n".join(f"  {line}" for line in log.read_text(errors="replace").splitlines()[-15:])
            raise ClusterError("StartFailed", f"the cluster's first process ended\n{tail}\nits log: {log}")
        return state is not None and state.phase == "running"

    def _wait_for_node(self) -> None:
        state = NodeState.read(self.instance.state_file)
        assert state is not None
        # After a restart the object still has the kubelet's former report; only a later one counts.
        since = datetime.fromtimestamp(state.started_at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        last = "no answer"

        def ready() -> bool:
            nonlocal last
            try:
                node = json.loads(self.access.kubectl("get", "node", NODE_NAME, "-o", "json", "--request-timeout=5s"))
            except ClusterError as error:
                last = error.message.splitlines()[-1]
                return False
            last = json.dumps(node["status"].get("conditions", []))
            return condition_holds(node, "Ready", since=since)

        wait_until(
            ready,
            what=f"node {NODE_NAME} to be ready",
            timeout_s=NODE_TIMEOUT_S,
            interval_s=0.1,
            last_seen=lambda: last,
        )

    def _ensure_dns(self) -> None:
        self.load_image(coredns_archive(), fingerprint=f"coredns-{gomodules.COREDNS.digest()}")
        self.access.apply("coredns.yaml", {"IMAGE": COREDNS_IMAGE, "DNS_ADDRESS": DNS_SERVICE_ADDRESS})
        words = [DNS_SERVICE_ADDRESS, "kubernetes.default.svc.cluster.local", str(DNS_TIMEOUT_S)]
        probe = ["env", f"PYTHONPATH={CHECKOUT}", sys.executable, "-m", "e2e.local_cluster.dns_probe", *words]
        run(enter_command(self.instance, probe), reason="NameServiceSilent", timeout_s=DNS_TIMEOUT_S + 10)


def _require_root() -> None:
    if os.geteuid() != 0:
        raise ClusterError(
            "NotRoot",
            "the embedded cluster makes namespaces, control groups and a network link, and so needs root; run it "
            "with sudo, or set FLEET_KUBECONFIG to use a cluster that exists",
        )


def _remove_tree(directory: Path) -> None:
    # Mounts of the cluster ended with its namespace. A remaining one is foreign: leave its content.
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        if line.split()[4].startswith(f"{directory}/"):
            raise ClusterError("MountLeft", f"{line.split()[4]} is still mounted; unmount it and run `down` again")
    shutil.rmtree(directory)
