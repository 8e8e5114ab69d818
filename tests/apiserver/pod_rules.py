"""Pod templates that the API server accepts or refuses, and the messages of its refusals."""

from __future__ import annotations

from typing import Any, Final

from tests.unit.api.crd_objects import ACCEPTED_PATHS, REFUSED_PATHS, JsonObject, consumer_group

CONTAINERS: Final = "spec.template.spec.containers: "
VOLUMES: Final = "spec.template.spec.volumes"
APPARMOR: Final = "container.apparmor.security.beta.kubernetes.io"
SECURITY: Final = "spec.template.spec.securityContext"


def with_worker(**fields: Any) -> JsonObject:
    return consumer_group({"spec.template.spec.containers": [{"name": "worker", **fields}]})


def with_side(**fields: Any) -> JsonObject:
    return consumer_group({"spec.template.spec.containers": [{"name": "side", "image": "i", **fields}]})


def with_first(**fields: Any) -> JsonObject:
    return consumer_group({"spec.template.spec.initContainers": [{"name": "first", "image": "i", **fields}]})


def with_volume(*, name: str = "v", **kinds: Any) -> JsonObject:
    return consumer_group({VOLUMES: [{"name": name, **kinds}]})


def with_source(**kinds: Any) -> JsonObject:
    return with_volume(projected={"sources": [kinds]})


SPREAD: Final[JsonObject] = {
    "maxSkew": 1,
    "topologyKey": "zone",
    "whenUnsatisfiable": "DoNotSchedule",
    "labelSelector": {"matchExpressions": [{"key": "a", "operator": "in", "values": ["b"]}]},
}


def retry_worker(**resources: Any) -> JsonObject:
    return consumer_group({"spec.retry": {"policyRef": {"name": "standard"}, "worker": {"resources": resources}}})


REFUSED_TYPES: Final = (
    *("hostPath", "nfs", "iscsi", "fc", "rbd", "cephfs", "glusterfs", "flexVolume", "gitRepo"),
    *("awsElasticBlockStore", "azureDisk", "azureFile", "cinder", "flocker", "gcePersistentDisk"),
    *("photonPersistentDisk", "portworxVolume", "quobyte", "scaleIO", "storageos", "vsphereVolume"),
)

POD_RULES: Final[list[tuple[str, JsonObject, str]]] = [
    ("a volume of no known type", with_volume(), f"{VOLUMES}: a volume needs exactly one of"),
    ("a volume of two types", with_volume(emptyDir={}, secret={}), f"{VOLUMES}: a volume needs exactly one of"),
    ("a projection of no known type", with_source(), f"{VOLUMES}: a projected source needs exactly one"),
    (
        "a volume with the operator's prefix",
        with_volume(name="consumer-fleet-x", emptyDir={}),
        f"{VOLUMES} must not have names that begin with consumer-fleet-",
    ),
    ("an image of the worker", with_worker(image="i"), CONTAINERS + "the worker's image is set by spec.image"),
    ("a pull policy of the worker", with_worker(imagePullPolicy="Always"), CONTAINERS + "the worker's image is set"),
    ("a command of the worker", with_worker(command=["sh"]), CONTAINERS + "the operator sets the worker's command"),
    ("arguments of the worker", with_worker(args=["run"]), CONTAINERS + "the operator sets the worker's command"),
    (
        "ports of the worker",
        with_worker(ports=[{"containerPort": 1}]),
        CONTAINERS + "the operator sets the worker's ports, probes and hooks",
    ),
    ("a probe of the worker", with_worker(livenessProbe={}), CONTAINERS + "the operator sets the worker's ports"),
    (
        "a user in the worker",
        with_worker(securityContext={"runAsUser": 5}),
        CONTAINERS + "user and groups of the worker are set by spec.template.spec.securityContext",
    ),
    (
        "a restart policy of the worker",
        with_worker(restartPolicy="Always"),
        CONTAINERS + "the container named worker takes only resources",
    ),
    (
        "the operator's environment",
        with_worker(env=[{"name": "POD_NAME", "value": "x"}]),
        CONTAINERS + "env of the container named worker must not set POD_NAME or",
    ),
    *(
        (
            f"a mount at {path}",
            with_worker(volumeMounts=[{"name": "v", "mountPath": path}]),
            CONTAINERS + "volumeMounts of the container named worker must not be below",
        )
        for path in REFUSED_PATHS
    ),
    (
        "a container without an image",
        consumer_group({"spec.template.spec.containers": [{"name": "side"}]}),
        CONTAINERS + "every container except worker needs an image",
    ),
    (
        "an init container without an image",
        consumer_group({"spec.template.spec.initContainers": [{"name": "first"}]}),
        "spec.template.spec.initContainers: every container needs an image",
    ),
    (
        "an init container named worker",
        consumer_group({"spec.template.spec.initContainers": [{"name": "worker", "image": "i"}]}),
        "spec.template.spec.initContainers must not contain a container named worker",
    ),
    (
        "one name for a container and an init container",
        consumer_group(
            {
                "spec.template.spec.containers": [{"name": "handler", "image": "i"}],
                "spec.template.spec.initContainers": [{"name": "handler", "image": "i", "restartPolicy": "Always"}],
            }
        ),
        "spec.template.spec: no name may be in both containers and initContainers",
    ),
    *(
        (
            f"the worker's credentials in {what}",
            make(volumeMounts=[{"name": "consumer-fleet-settings", "mountPath": "/stolen"}]),
            "a container of spec.template must not mount volumes whose names begin with consumer-fleet-",
        )
        for what, make in (("a sidecar", with_side), ("an init container", with_first), ("the worker", with_worker))
    ),
    *(
        (
            f"a container with {field} {value}",
            with_side(securityContext={field: value}),
            "a container of spec.template is held to the pod security level restricted",
        )
        for field, value in (("privileged", True), ("allowPrivilegeEscalation", True), ("runAsNonRoot", False))
    ),
    (
        "a pod that may run as root",
        consumer_group({SECURITY: {"runAsNonRoot": False}}),
        f"{SECURITY}.runAsNonRoot must be true",
    ),
    (
        "the operator's labels",
        consumer_group({"spec.template.metadata": {"labels": {"consumerfleet.io/group": "x"}}}),
        "spec.template.metadata.labels must not set consumerfleet.io/ labels",
    ),
    (
        "the operator's annotations",
        consumer_group({"spec.template.metadata": {"annotations": {"consumerfleet.io/revision": "x"}}}),
        "spec.template.metadata.annotations must not set consumerfleet.io/ annotations",
    ),
    (
        "a container without AppArmor",
        consumer_group({"spec.template.metadata": {"annotations": {f"{APPARMOR}/worker": "unconfined"}}}),
        "spec.template.metadata.annotations must not set AppArmor profiles",
    ),
]

POD_SCHEMA: Final[list[tuple[str, JsonObject, str]]] = [
    (
        "a mistyped operator of a toleration",
        consumer_group({"spec.template.spec.tolerations": [{"operator": "Exist"}]}),
        "spec.template.spec.tolerations[0].operator",
    ),
    (
        "a mistyped operator of a selector",
        consumer_group({"spec.template.spec.topologySpreadConstraints": [SPREAD]}),
        "labelSelector.matchExpressions[0].operator",
    ),
    *(
        (f"{size!r} as {what} of {whose}", body, f"resources.{what}.memory")
        for size in ("512MB", "1 Gi", "half", "")
        for what in ("requests", "limits")
        for whose, body in (
            ("the worker", with_worker(resources={what: {"memory": size}})),
            ("a sidecar", with_side(resources={what: {"memory": size}})),
            ("the retry workers", retry_worker(**{what: {"memory": size}})),
        )
    ),
    ("a size of no unit that is known", with_volume(emptyDir={"sizeLimit": "1GB"}), "emptyDir.sizeLimit"),
    ("a mistyped medium", with_volume(emptyDir={"medium": "memory"}), "emptyDir.medium"),
    (
        "a mistyped mount",
        with_worker(volumeMounts=[{"name": "v", "mountPath": "/v", "recursiveReadOnly": "Enable"}]),
        "volumeMounts[0].recursiveReadOnly",
    ),
    ("a mistyped restart policy", with_first(restartPolicy="always"), "restartPolicy"),
    ("a mistyped policy of last words", with_side(terminationMessagePolicy="Files"), "terminationMessagePolicy"),
    ("an unknown pull policy", consumer_group({"spec.imagePullPolicy": "Sometimes"}), "spec.imagePullPolicy"),
    ("root in the pod", consumer_group({SECURITY: {"runAsUser": 0}}), f"{SECURITY}.runAsUser"),
    ("root in a container", with_side(securityContext={"runAsUser": 0}), "securityContext.runAsUser"),
    (
        "every system call in the pod",
        consumer_group({SECURITY: {"seccompProfile": {"type": "Unconfined"}}}),
        f"{SECURITY}.seccompProfile.type",
    ),
    (
        "every system call in a container",
        with_side(securityContext={"seccompProfile": {"type": "Unconfined"}}),
        "securityContext.seccompProfile.type",
    ),
    (
        "a capability",
        with_side(securityContext={"capabilities": {"add": ["SYS_ADMIN"]}}),
        "securityContext.capabilities.add[0]",
    ),
    (
        "two containers of one name",
        consumer_group({"spec.template.spec.containers": [{"name": "worker"}, {"name": "worker"}]}),
        "spec.template.spec.containers[1]",
    ),
]

ACCEPTED_PODS: Final[list[tuple[str, JsonObject]]] = [
    ("a worker's resources and nothing else", with_worker(resources={"requests": {"memory": "96Mi"}})),
    ("a worker without any resources", with_worker(resources={})),
    *(
        (f"{size!r} as a quantity", with_worker(resources={"limits": {"memory": size}}))
        for size in ("96Mi", "1.5Gi", "1e9", "+1G", ".5Gi", "100m", 268_435_456)
    ),
    ("retry workers with resources of their own", retry_worker(requests={"cpu": "50m"}, limits={"cpu": 1})),
    ("a volume in memory", with_volume(emptyDir={"medium": "Memory", "sizeLimit": "64Mi"})),
    ("a volume in large pages", with_volume(emptyDir={"medium": "HugePages-2Mi"})),
    ("an init container that stays", with_first(restartPolicy="Always")),
    ("a sidecar whose log has its last words", with_side(terminationMessagePolicy="FallbackToLogsOnError")),
    ("an init container with an environment of its own", with_first(env=[{"name": "POD_NAME", "value": "x"}])),
    *((f"a mount at {path}", with_worker(volumeMounts=[{"name": "v", "mountPath": path}])) for path in ACCEPTED_PATHS),
    (
        "a sidecar's mount where the worker has its settings",
        with_side(volumeMounts=[{"name": "v", "mountPath": "/etc/fleet"}]),
    ),
]

UNKNOWN_FIELDS: Final[list[tuple[str, JsonObject, str]]] = [
    ("another group protocol", consumer_group({"spec.consumer.protocol": "Consumer"}), "spec.consumer.protocol"),
    ("the node's network", consumer_group({"spec.template.spec.hostNetwork": True}), "spec.hostNetwork"),
    ("ephemeral containers", consumer_group({"spec.template.spec.ephemeralContainers": []}), "ephemeralContainers"),
    (
        "a token of a service account",
        consumer_group({"spec.template.spec.automountServiceAccountToken": True}),
        "automountService",
    ),
    ("SELinux in the pod", consumer_group({SECURITY: {"seLinuxOptions": {}}}), "securityContext.seLinuxOptions"),
    ("Windows in the pod", consumer_group({SECURITY: {"windowsOptions": {}}}), "securityContext.windowsOptions"),
    ("kernel settings", consumer_group({SECURITY: {"sysctls": []}}), "securityContext.sysctls"),
    ("SELinux in a container", with_side(securityContext={"seLinuxOptions": {}}), "securityContext.seLinuxOptions"),
    ("Windows in a container", with_side(securityContext={"windowsOptions": {}}), "securityContext.windowsOptions"),
    ("an unmasked /proc", with_side(securityContext={"procMount": "Unmasked"}), "securityContext.procMount"),
    ("a block device", with_side(volumeDevices=[{"name": "v", "devicePath": "/dev/x"}]), "volumeDevices"),
    ("an address of the node", with_side(ports=[{"containerPort": 80, "hostIP": "10.0.0.1"}]), "hostIP"),
    ("a port of the node", with_side(ports=[{"containerPort": 80, "hostPort": 80}]), "hostPort"),
    ("a probe of another host", with_side(livenessProbe={"httpGet": {"host": "10.0.0.1", "port": 80}}), "httpGet.host"),
    (
        "a connection to another host",
        with_first(startupProbe={"tcpSocket": {"host": "10.0.0.1", "port": 80}}),
        "tcpSocket.host",
    ),
    (
        "a hook that calls another host",
        with_side(lifecycle={"preStop": {"httpGet": {"host": "10.0.0.1", "port": 80}}}),
        "preStop.httpGet.host",
    ),
    *(
        (f"a volume of type {kind}", consumer_group({VOLUMES: [{"name": "v", kind: {}}]}), kind)
        for kind in REFUSED_TYPES
    ),
    ("a signal that Kubernetes drops", with_side(lifecycle={"stopSignal": "SIGUSR1"}), "lifecycle.stopSignal"),
    ("a volume of tomorrow", with_volume(invented={}), "invented"),
    ("a token in a projected volume", with_source(serviceAccountToken={"path": "t"}), "sources[0].serviceAccountToken"),
    ("a certificate of the pod", with_source(podCertificate={}), "sources[0].podCertificate"),
    ("a trust bundle", with_source(clusterTrustBundle={}), "sources[0].clusterTrustBundle"),
    ("a mistyped affinity", consumer_group({"spec.template.spec.affinity": {"nodeAfinity": {}}}), "nodeAfinity"),
    (
        "a mistyped source of a variable",
        with_worker(env=[{"name": "A", "valueFrom": {"secretKeyReff": {}}}]),
        "valueFrom.secretKeyReff",
    ),
    ("a mistyped size", with_volume(emptyDir={"sizelimit": "1Gi"}), "emptyDir.sizelimit"),
    ("a mistyped mount", with_worker(volumeMounts=[{"name": "v", "mountPath": "/v", "readonly": True}]), "readonly"),
    ("a mistyped toleration", consumer_group({"spec.template.spec.tolerations": [{"keys": "a"}]}), "keys"),
    ("a mistyped probe", with_side(livenessProbe={"periodSecond": 5}), "livenessProbe.periodSecond"),
    ("the old place of resources", consumer_group({"spec.template.resources": {}}), "spec.template.resources"),
]
"""Fields that the schema does not have: strict clients such as kubectl are told, others see them dropped."""
