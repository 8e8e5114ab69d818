"""The first process of a cluster's namespaces: sets them up, starts the node's components, and supervises them.

``python -m e2e.local_cluster.inside DIRECTORY``; started by ``up``, not for manual use. It runs as process 1: orphaned
processes become its children, and when it ends the kernel ends everything else.
"""

import fcntl
import sys
from pathlib import Path

from e2e.local_cluster import control_plane, node_files
from e2e.local_cluster.commands import output, run
from e2e.local_cluster.control_plane import ApiServerSettings
from e2e.local_cluster.errors import ClusterError
from e2e.local_cluster.instance import Instance
from e2e.local_cluster.kubeconfig import write_kubeconfig
from e2e.local_cluster.network import NODE_INTERFACE
from e2e.local_cluster.node_state import NodeSettings
from e2e.local_cluster.pki import Authority
from e2e.local_cluster.supervisor import Supervisor
from e2e.local_cluster.waiting import wait_until

API_PORT = 6443
ETCD_URL = "http://127.0.0.1:2379"
ETCD_PEER_URL = "http://127.0.0.1:2380"
LINK_TIMEOUT_S = 30.0
COMPONENT_TIMEOUT_S = 120.0

# Paths that are fixed in programs. The folders must exist on the host to be mounted over; missing ones are created
# there and stay, empty: removing one would remove the mount of another cluster.
KEPT_PLACES = ("/var/lib/kubelet", "/var/log/pods", "/var/log/containers")
FRESH_PLACES = ("/run", "/var/lib/cni")

# The kubelet requires and sets these; but they belong to the whole machine, so it gets files to write instead.
KERNEL_SETTINGS = {
    "vm/overcommit_memory": "1",
    "vm/panic_on_oom": "0",
    "kernel/panic": "10",
    "kernel/panic_on_oops": "1",
    "kernel/keys/root_maxkeys": "1000000",
    "kernel/keys/root_maxbytes": "25000000",
}


def main() -> None:
    """Run as the first process of the instance whose directory is the only argument."""
    instance = Instance(Path(sys.argv[1]).name, Path(sys.argv[1]))
    # Two first processes would share etcd's files. The second ends at once.
    with (instance.directory / ".inside.lock").open("a+") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        settings = NodeSettings.read(instance.settings_file)
        if settings is None:
            raise SystemExit(f"no settings in {instance.settings_file}")
        supervisor = Supervisor(logs=instance.logs, state_file=instance.state_file)
        try:
            _Node(instance, settings, supervisor).start()
        except ClusterError as error:
            supervisor.fail(str(error))
            raise SystemExit(str(error)) from error
        supervisor.watch()


class _Node:
    def __init__(self, instance: Instance, settings: NodeSettings, supervisor: Supervisor) -> None:
        self._directory = instance.directory
        self._settings = settings
        self._supervisor = supervisor
        self._kubernetes = Path(settings.kubernetes_programs)
        self._authority = Authority(instance.directory / "pki")
        self._admin = instance.kubeconfig
        self._server = f"https://{settings.node_address}:{API_PORT}"

    def start(self) -> None:
        self._mount()
        self._connect()
        self._issue_certificates()
        self._start_storage_and_runtime()
        self._start_controllers()
        self._start_node_agents()

    def _mount(self) -> None:
        run(["mount", "--make-rshared", "/"])
        for place in FRESH_PLACES:
            Path(place).mkdir(parents=True, exist_ok=True)
            run(["mount", "-t", "tmpfs", "-o", "mode=755", "tmpfs", place])
        for place in KEPT_PLACES:
            own = self._directory / "mounted" / place.lstrip("/")
            own.mkdir(parents=True, exist_ok=True)
            Path(place).mkdir(parents=True, exist_ok=True)
            run(["mount", "--bind", own, place])
        Path("/run/lock").mkdir()
        for setting, value in KERNEL_SETTINGS.items():
            stand_in = Path("/run/kernel-settings", setting)
            stand_in.parent.mkdir(parents=True, exist_ok=True)
            stand_in.write_text(f"{value}\n")
            run(["mount", "--bind", stand_in, Path("/proc/sys", setting)])

    def _connect(self) -> None:
        run(["ip", "link", "set", "lo", "up"])
        wait_until(
            # Not from /sys: its mount still shows the host's interfaces.
            lambda: output(["ip", "link", "show", NODE_INTERFACE]) is not None,
            what="the link to the host",
            timeout_s=LINK_TIMEOUT_S,
            interval_s=0.02,
        )
        run(["ip", "address", "add", f"{self._settings.node_address}/30", "dev", NODE_INTERFACE])
        run(["ip", "link", "set", NODE_INTERFACE, "up"])
        # Kubernetes' programs require a default route. The host does not forward packets from it.
        run(["ip", "route", "add", "default", "via", self._settings.host_address])
        Path("/proc/sys/net/ipv4/ip_forward").write_text("1")

    def _issue_certificates(self) -> None:
        node = self._settings.node_address
        authority = self._authority
        authority.ensure()
        authority.issue("apiserver", "kube-apiserver", names=control_plane.api_server_names(node))
        authority.issue("apiserver-kubelet", "kube-apiserver-kubelet-client", group="system:masters")
        authority.issue("front-proxy", control_plane.FRONT_PROXY)
        names = [f"DNS:{node_files.NODE_NAME}", f"IP:{node}", "IP:127.0.0.1"]
        authority.issue("kubelet", f"system:node:{node_files.NODE_NAME}", group="system:nodes", names=names)
        authority.issue("admin", "admin", group="system:masters")
        for component in ("kube-controller-manager", "kube-scheduler", "kube-proxy"):
            authority.issue(component, f"system:{component}")
        for component in ("kubelet", "kube-controller-manager", "kube-scheduler", "kube-proxy"):
            self._write_kubeconfig(component)
        write_kubeconfig(self._admin, server=self._server, authority=authority, name="admin")

    def _start_storage_and_runtime(self) -> None:
        settings = self._settings
        etcd = control_plane.etcd_command(
            Path(settings.etcd_programs, "etcd"),
            data=self._directory / "etcd",
            client_url=ETCD_URL,
            peer_url=ETCD_PEER_URL,
        )
        self._supervisor.start("etcd", etcd)
        api_server = ApiServerSettings(
            program=self._kubernetes / "kube-apiserver",
            authority=self._authority,
            etcd_url=ETCD_URL,
            bind_address="0.0.0.0",
            port=API_PORT,
            advertise_address=settings.node_address,
            with_controllers=True,
        )
        self._supervisor.start("kube-apiserver", control_plane.kube_apiserver_command(api_server))
        cni_folder = self._directory / "cni"
        cni_folder.mkdir(exist_ok=True)
        (cni_folder / "10-pods.conflist").write_text(node_files.cni_config())
        config = self._write(
            "containerd.toml",
            node_files.containerd_config(
                root=str(self._directory / "containerd"),
                pause_image=settings.pause_image,
                cni_programs=settings.cni_programs,
                cni_config_folder=str(cni_folder),
            ),
        )
        self._supervisor.start("containerd", ["containerd", "--config", str(config)])
        self._wait("containerd to answer", ["ctr", "--address", node_files.CONTAINERD_SOCKET, "version"])
        run(
            [
                "ctr",
                "--address",
                node_files.CONTAINERD_SOCKET,
                "-n",
                "k8s.io",
                "images",
                "import",
                settings.pause_archive,
            ]
        )
        self._wait("the API server to be ready", self._kubectl("get", "--raw", "/readyz"))

    def _start_controllers(self) -> None:
        self._supervisor.start(
            "kube-controller-manager",
            control_plane.controller_manager_command(
                self._kubernetes / "kube-controller-manager",
                kubeconfig=self._kubeconfig("kube-controller-manager"),
                authority=self._authority,
            ),
        )
        scheduler = self._kubernetes / "kube-scheduler"
        self._supervisor.start(
            "kube-scheduler",
            control_plane.scheduler_command(scheduler, kubeconfig=self._kubeconfig("kube-scheduler")),
        )

    def _start_node_agents(self) -> None:
        resolv_conf = self._write("resolv.conf", "nameserver 127.0.0.1\n")
        kubelet_config = node_files.kubelet_config(
            authority=self._authority, cgroup=self._settings.cgroup, resolv_conf=str(resolv_conf)
        )
        kubelet = [
            str(self._kubernetes / "kubelet"),
            f"--config={self._write('kubelet.json', kubelet_config)}",
            f"--kubeconfig={self._kubeconfig('kubelet')}",
            f"--hostname-override={node_files.NODE_NAME}",
            f"--node-ip={self._settings.node_address}",
        ]
        self._supervisor.start("kubelet", kubelet)
        proxy_config = node_files.kube_proxy_config(kubeconfig=str(self._kubeconfig("kube-proxy")))
        proxy = [str(self._kubernetes / "kube-proxy"), f"--config={self._write('kube-proxy.json', proxy_config)}"]
        self._supervisor.start("kube-proxy", proxy)

    def _wait(self, what: str, probe: list[str]) -> None:
        def answers() -> bool:
            self._supervisor.check()
            return output(probe) is not None

        wait_until(answers, what=what, timeout_s=COMPONENT_TIMEOUT_S, interval_s=0.1)

    def _kubectl(self, *args: str) -> list[str]:
        return [str(self._kubernetes / "kubectl"), "--kubeconfig", str(self._admin), *args]

    def _kubeconfig(self, component: str) -> Path:
        return self._directory / f"{component}.conf"

    def _write_kubeconfig(self, component: str) -> None:
        path = self._kubeconfig(component)
        write_kubeconfig(path, server=self._server, authority=self._authority, name=component)

    def _write(self, name: str, text: str) -> Path:
        file = self._directory / name
        file.write_text(text)
        return file


if __name__ == "__main__":
    main()
