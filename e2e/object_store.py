"""An S3 store as a pod next to the volume of a scene: versitygw, whose buckets are folders of the volume.

Output that Spark's pods write through S3 is read from the volume, by code without S3.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any, Final

from e2e.backfill_scene import BackfillScene
from e2e.demo.backfill import BUCKETS, CLAIM, MOUNT
from e2e.demo.backfill import POD as READER
from e2e.local_cluster.archives import ImageSettings, write_image, write_layer
from e2e.local_cluster.cluster import LocalCluster
from e2e.local_cluster.gomodules import VERSITYGW, ensure_programs
from e2e.local_cluster.instance import Instance

NAME: Final = "object-store"
BUCKET: Final = "warehouse"
PORT: Final = 7070
REGION: Final = "eu-central-1"
IMAGE: Final = f"docker.io/library/{NAME}:{VERSITYGW.version}"
KEYS: Final = {"AWS_ACCESS_KEY_ID": "fleet-e2e", "AWS_SECRET_ACCESS_KEY": "secret-of-fleet-e2e"}
SECRET: Final = "lake-keys"


def start_object_store(instance: Instance, scene: BackfillScene) -> None:
    """Start the store with an empty bucket in the scene's namespace; Spark reads its keys from the Secret."""
    with tempfile.TemporaryDirectory(prefix="fleet-object-store-") as folder:
        layer, archive = Path(folder, "layer.tar"), Path(folder, "image.tar")
        write_layer(layer, {"/versitygw": ensure_programs(VERSITYGW) / "versitygw"})
        write_image(archive, IMAGE, [layer], ImageSettings(entrypoint=["/versitygw"]))
        LocalCluster(instance).load_image(archive)
    fleet = scene.fleet
    fleet.kubectl("exec", READER, "--", "mkdir", "-p", f"{MOUNT}/{BUCKETS}/{BUCKET}")
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": SECRET}, "stringData": KEYS}
    fleet.cluster.apply([secret, _pod(), _service()], namespace=fleet.namespace)
    fleet.kubectl("wait", "--for=condition=Ready", f"pod/{NAME}", "--timeout=300s", timeout_s=320)


def stored(scene: BackfillScene, **table: Any) -> dict[str, Any]:
    """The sink and the image of a Backfill to a table in the bucket; `path` is the table's path there."""
    address = f"http://{NAME}.{scene.fleet.namespace}.svc:{PORT}"
    settings = {"endpoint": address, "endpoint.region": REGION, "path.style.access": "true"}
    conf = {f"spark.hadoop.fs.s3a.{name}": value for name, value in settings.items()}
    sink = {"table": {**table, "path": f"s3a://{BUCKET}/{table['path']}"}, "secretRef": {"name": SECRET}}
    return {"sink": sink, "spark": {"image": scene.spark_image, "sparkConf": conf}}


def _pod() -> dict[str, Any]:
    names = {"ROOT_ACCESS_KEY_ID": "AWS_ACCESS_KEY_ID", "ROOT_SECRET_ACCESS_KEY": "AWS_SECRET_ACCESS_KEY"}
    environment = [
        {"name": own, "valueFrom": {"secretKeyRef": {"name": SECRET, "key": key}}} for own, key in names.items()
    ]
    words = [f"--port=:{PORT}", f"--region={REGION}", "--health=/health", "--quiet", "posix", f"{MOUNT}/{BUCKETS}"]
    container = {
        "name": NAME,
        "image": IMAGE,
        "imagePullPolicy": "Never",
        "args": words,
        "env": environment,
        "readinessProbe": {"httpGet": {"path": "/health", "port": PORT}, "periodSeconds": 1},
        "volumeMounts": [{"name": "lake", "mountPath": MOUNT}],
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": NAME, "labels": {"app": NAME}},
        "spec": {
            "terminationGracePeriodSeconds": 0,
            "automountServiceAccountToken": False,
            # The user of the reader's pod and of Spark's pods, which own the volume's files and folders.
            "securityContext": {"runAsNonRoot": True, "runAsUser": 185, "seccompProfile": {"type": "RuntimeDefault"}},
            "containers": [container],
            "volumes": [{"name": "lake", "persistentVolumeClaim": {"claimName": CLAIM}}],
        },
    }


def _service() -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": NAME},
        "spec": {"selector": {"app": NAME}, "ports": [{"port": PORT}]},
    }
