"""Configuration files of a node's programs, with the reason of each setting. Nothing is written or started here."""

import json

from e2e.local_cluster.control_plane import DNS_SERVICE_ADDRESS, POD_RANGE
from e2e.local_cluster.pki import Authority

__all__ = ["CONTAINERD_SOCKET", "NODE_NAME", "cni_config", "containerd_config", "kube_proxy_config", "kubelet_config"]

NODE_NAME = "node1"
# Below the namespace's own /run, which is empty at each start, as after a reboot.
CONTAINERD_SOCKET = "/run/containerd/containerd.sock"
POD_SUBNET = "10.244.0.0/24"


def containerd_config(*, root: str, pause_image: str, cni_programs: str, cni_config_folder: str) -> str:
    """containerd as the kubelet's runtime. Not every root has the capability to lower an OOM score."""
    return f"""\
version = 2
root = "{root}"
state = "/run/containerd"
[grpc]
  address = "{CONTAINERD_SOCKET}"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{pause_image}"
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
      SystemdCgroup = false
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "{cni_programs}"
    conf_dir = "{cni_config_folder}"
"""


def cni_config() -> str:
    """Pod networking: a routed pair of interfaces for each pod.

    With a bridge, responses between pods of one node would pass the service rules only with the kernel module
    br_netfilter, and loading that would change the host. Routed packets pass them anyway.
    """
    ipam = {"type": "host-local", "ranges": [[{"subnet": POD_SUBNET}]], "routes": [{"dst": "0.0.0.0/0"}]}
    plugins = [
        {"type": "ptp", "ipMasq": True, "ipam": ipam},
        {"type": "portmap", "capabilities": {"portMappings": True}},
    ]
    return json.dumps({"cniVersion": "0.4.0", "name": "pods", "plugins": plugins}, indent=2) + "\n"


def kubelet_config(*, authority: Authority, cgroup: str, resolv_conf: str) -> str:
    """The kubelet. It must tolerate a machine it does not own: swap, a full disk, any layout of control groups."""
    certificate, key = authority.certificate("kubelet")
    config = {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": True},
            "x509": {"clientCAFile": str(authority.root_certificate)},
        },
        "authorization": {"mode": "Webhook"},
        "tlsCertFile": str(certificate),
        "tlsPrivateKeyFile": str(key),
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": f"/{cgroup}",
        "failCgroupV1": False,
        "failSwapOn": False,
        "oomScoreAdj": 0,
        "clusterDomain": "cluster.local",
        "clusterDNS": [DNS_SERVICE_ADDRESS],
        # The host's own name servers cannot be reached from inside.
        "resolvConf": resolv_conf,
        "containerRuntimeEndpoint": f"unix://{CONTAINERD_SOCKET}",
        "evictionHard": {"memory.available": "100Mi", "nodefs.available": "1%", "imagefs.available": "1%"},
        # Images are loaded from archives and cannot be pulled again: never collect them.
        "imageGCHighThresholdPercent": 100,
        "imageGCLowThresholdPercent": 99,
        "maxPods": 200,
        "nodeStatusUpdateFrequency": "5s",
        "shutdownGracePeriod": "0s",
    }
    return json.dumps(config, indent=2) + "\n"


def kube_proxy_config(*, kubeconfig: str) -> str:
    """kube-proxy with iptables; it keeps the connection table's size, which belongs to the whole machine."""
    config = {
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "clientConnection": {"kubeconfig": kubeconfig},
        "mode": "iptables",
        "clusterCIDR": POD_RANGE,
        "hostnameOverride": NODE_NAME,
        "oomScoreAdj": 0,
        "conntrack": {"maxPerCore": 0, "min": 0},
        "metricsBindAddress": "127.0.0.1:10249",
    }
    return json.dumps(config, indent=2) + "\n"
