"""The mounted files of a worker's pod, written as the kubelet writes them, from the pod template and the Secrets.

A volume's files are in a folder that a link points to; a change is written to a new folder, and the link is switched.
"""

from __future__ import annotations

import base64
import json
import re
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fleet_operator.planning.fleet.revision import Revision

Secrets = Mapping[str, Mapping[str, Any]]


class MountedPod:
    """Folders in place of the worker container's mounts. The kubelet mounts nothing while a named key is missing."""

    def __init__(self, revision: Revision, folder: Path) -> None:
        self._revision = revision
        spec = revision.pod_template["spec"]
        worker = next(container for container in spec["containers"] if container["name"] == "worker")
        self._paths = {mount["mountPath"]: folder / mount["name"] for mount in worker["volumeMounts"]}
        places = {mount["name"]: folder / mount["name"] for mount in worker["volumeMounts"]}
        self._volumes = [(volume, places[volume["name"]]) for volume in spec["volumes"] if volume["name"] in places]

    def settings(self) -> dict[str, Any]:
        """The rendered worker.json, with the folders in place of the mounts."""
        mounts = "|".join(re.escape(path) for path in self._paths)
        text = json.dumps(self._revision.worker_config)
        text = re.sub(f'"({mounts})/', lambda found: f'"{self._paths[found[1]]}/', text)
        settings: dict[str, Any] = json.loads(text)
        return settings

    def sync(self, secrets: Secrets) -> None:
        """Write all volumes of Secrets again; the ConfigMaps are those of the revision."""
        for volume, folder in self._volumes:
            if "secret" in volume:
                _write(folder, _data(secrets[volume["secret"]["secretName"]]))
            elif "projected" in volume:
                files: dict[str, bytes] = {}
                for source in volume["projected"]["sources"]:
                    files |= self._projected(source, secrets)
                _write(folder, files)

    def _projected(self, source: Mapping[str, Any], secrets: Secrets) -> dict[str, bytes]:
        ((kind, part),) = source.items()
        if kind == "secret":
            data = _data(secrets[part["name"]])
        else:
            data = {name: text.encode() for name, text in (self._revision.handler_files or {}).items()}
            data["worker.json"] = b"{}"  # read from `settings`
        return {item["path"]: data[item["key"]] for item in part["items"]}


def _data(secret: Mapping[str, Any]) -> dict[str, bytes]:
    return {key: base64.b64decode(value) for key, value in secret["data"].items()}


def _write(folder: Path, files: Mapping[str, bytes]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    fresh = folder / f"..{time.monotonic_ns()}"
    for path, content in files.items():
        (fresh / path).parent.mkdir(parents=True, exist_ok=True)
        (fresh / path).write_bytes(content)
    link = folder / "..data_tmp"
    link.symlink_to(fresh.name)
    link.rename(folder / "..data")
    tops = {path.split("/")[0] for path in files}
    for top in tops:
        if not (folder / top).is_symlink():
            (folder / top).symlink_to(f"..data/{top}")
    for shown in folder.iterdir():
        if not shown.name.startswith("..") and shown.name not in tops:
            shown.unlink()
