"""Command lines of the control plane, with the reason of each flag. Nothing is started here."""

from dataclasses import dataclass
from pathlib import Path

from e2e.local_cluster.pki import Authority

__all__ = [
    "API_SERVICE_ADDRESS",
    "DNS_SERVICE_ADDRESS",
    "FRONT_PROXY",
    "GO_SETTINGS",
    "POD_RANGE",
    "ApiServerSettings",
    "api_server_names",
    "controller_manager_command",
    "etcd_command",
    "kube_apiserver_command",
    "scheduler_command",
]

SERVICE_RANGE = "10.96.0.0/16"
API_SERVICE_ADDRESS = "10.96.0.1"
DNS_SERVICE_ADDRESS = "10.96.0.10"
POD_RANGE = "10.244.0.0/16"
FRONT_PROXY = "front-proxy-client"
"""The API server's name when it forwards requests of others."""
GO_SETTINGS = {"GOGC": "400"}
"""Environment of the components: a heap may grow to five times its live size before a collection. With Go's default the
collector uses a fifth of an API server's processor time."""
SERVICE_ACCOUNT_ISSUER = "https://kubernetes.default.svc.cluster.local"


def etcd_command(program: Path, *, data: Path, client_url: str, peer_url: str) -> list[str]:
    """A single etcd. It does not wait for the disk: a power cut only loses a test cluster."""
    return [
        str(program),
        f"--data-dir={data}",
        "--unsafe-no-fsync",
        f"--listen-client-urls={client_url}",
        f"--advertise-client-urls={client_url}",
        f"--listen-peer-urls={peer_url}",
        f"--initial-advertise-peer-urls={peer_url}",
        f"--initial-cluster=default={peer_url}",
        "--log-level=warn",
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiServerSettings:
    """The differences between the API server of a cluster and one that runs alone for tests."""

    program: Path
    authority: Authority
    """Must have issued ``apiserver`` (serving) and ``apiserver-kubelet`` (client of the kubelets), and with a
    controller manager ``front-proxy`` (client of other API servers, under the name of FRONT_PROXY)."""
    etcd_url: str
    bind_address: str
    port: int
    advertise_address: str
    with_controllers: bool
    """False if no controller manager runs with it."""


def api_server_names(*addresses: str) -> list[str]:
    """The names that the API server's certificate must carry, in openssl's form."""
    service = ["kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local"]
    return [f"DNS:{name}" for name in (*service, "localhost")] + [
        f"IP:{address}" for address in dict.fromkeys(("127.0.0.1", API_SERVICE_ADDRESS, *addresses))
    ]


def kube_apiserver_command(settings: ApiServerSettings) -> list[str]:
    """The API server: certificates for all parties, RBAC, and service account tokens signed by our own key."""
    authority = settings.authority
    certificate, key = authority.certificate("apiserver")
    kubelet_certificate, kubelet_key = authority.certificate("apiserver-kubelet")
    command = [
        str(settings.program),
        f"--etcd-servers={settings.etcd_url}",
        f"--bind-address={settings.bind_address}",
        f"--secure-port={settings.port}",
        f"--advertise-address={settings.advertise_address}",
        f"--client-ca-file={authority.root_certificate}",
        f"--tls-cert-file={certificate}",
        f"--tls-private-key-file={key}",
        f"--service-account-key-file={authority.service_account_public_key}",
        f"--service-account-signing-key-file={authority.service_account_key}",
        f"--service-account-issuer={SERVICE_ACCOUNT_ISSUER}",
        f"--service-cluster-ip-range={SERVICE_RANGE}",
        f"--kubelet-client-certificate={kubelet_certificate}",
        f"--kubelet-client-key={kubelet_key}",
        "--kubelet-preferred-address-types=InternalIP",
        "--authorization-mode=Node,RBAC",
        "--allow-privileged=true",
        "--profiling=false",
    ]
    if settings.with_controllers:
        # Requests to other API servers, such as metrics adapters for autoscalers, go through this one, which vouches
        # for the requester.
        proxy_certificate, proxy_key = authority.certificate("front-proxy")
        command += [
            f"--proxy-client-cert-file={proxy_certificate}",
            f"--proxy-client-key-file={proxy_key}",
            f"--requestheader-client-ca-file={authority.root_certificate}",
            f"--requestheader-allowed-names={FRONT_PROXY}",
            "--requestheader-username-headers=X-Remote-User",
            "--requestheader-group-headers=X-Remote-Group",
            "--requestheader-extra-headers-prefix=X-Remote-Extra-",
        ]
    else:
        # Namespaces then have no default service account, and this plugin would refuse every pod.
        command.append("--disable-admission-plugins=ServiceAccount")
        # Alone means on loopback, which the endpoint of the service `kubernetes` does not allow; it is not needed here.
        command.append("--endpoint-reconciler-type=none")
    return command


def controller_manager_command(program: Path, *, kubeconfig: Path, authority: Authority) -> list[str]:
    """The controllers; the only ones of their cluster, so without leader election."""
    return [
        str(program),
        f"--kubeconfig={kubeconfig}",
        f"--authentication-kubeconfig={kubeconfig}",
        f"--authorization-kubeconfig={kubeconfig}",
        "--bind-address=127.0.0.1",
        f"--root-ca-file={authority.root_certificate}",
        f"--service-account-private-key-file={authority.service_account_key}",
        "--use-service-account-credentials",
        "--allocate-node-cidrs",
        f"--cluster-cidr={POD_RANGE}",
        f"--cluster-signing-cert-file={authority.root_certificate}",
        f"--cluster-signing-key-file={authority.root_key}",
        "--leader-elect=false",
        # At the default of 20 requests a second, its controllers' service accounts would exist only after 5 s.
        "--kube-api-qps=500",
        "--kube-api-burst=1000",
    ]


def scheduler_command(program: Path, *, kubeconfig: Path) -> list[str]:
    """The scheduler, also without leader election."""
    return [
        str(program),
        f"--kubeconfig={kubeconfig}",
        f"--authentication-kubeconfig={kubeconfig}",
        f"--authorization-kubeconfig={kubeconfig}",
        "--bind-address=127.0.0.1",
        "--leader-elect=false",
    ]
