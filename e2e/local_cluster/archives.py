"""Image archives without a builder, for images of a program or a few folders.

The format is that of ``docker save``: a tar of layers (tars themselves), a config and a manifest. It is
reproducible to the byte (no times, no owners): the same files give the same image.
"""

import hashlib
import io
import json
import platform
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

__all__ = ["ImageSettings", "architecture", "write_image", "write_layer"]

ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageSettings:
    """The command and environment of the image's containers."""

    entrypoint: Sequence[str]
    user: str = "65532:65532"
    env: Mapping[str, str] = field(default_factory=dict)
    working_dir: str = "/"


def architecture() -> str:
    """This machine's processor architecture, as image formats name it."""
    return ARCHITECTURES.get(platform.machine(), platform.machine())


def write_layer(layer: Path, files: Mapping[str, Path]) -> None:
    """Write a layer that holds each file or folder (the mapping's values) under a path (its keys)."""
    with tarfile.open(layer, "w") as archive:
        for target, source in sorted(files.items()):
            archive.add(source, arcname=target.lstrip("/"), filter=_anonymous)


def write_image(archive: Path, name: str, layers: Sequence[Path], settings: ImageSettings) -> None:
    """Write an image archive from layers, the lowest first."""
    digests = [_digest(layer) for layer in layers]
    config = {
        "architecture": architecture(),
        "os": "linux",
        "config": {
            "Entrypoint": list(settings.entrypoint),
            "User": settings.user,
            "Env": [f"{key}={value}" for key, value in settings.env.items()],
            "WorkingDir": settings.working_dir,
        },
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}" for digest in digests]},
        # Builders count layers by this list.
        "history": [{"created": "1970-01-01T00:00:00Z", "created_by": "local-cluster"} for _ in digests],
    }
    manifest = [{"Config": "config.json", "RepoTags": [name], "Layers": [f"{digest}.tar" for digest in digests]}]
    with tarfile.open(archive, "w") as out:
        for layer, digest in zip(layers, digests, strict=True):
            out.add(layer, arcname=f"{digest}.tar", filter=_anonymous)
        _add_json(out, "config.json", config)
        _add_json(out, "manifest.json", manifest)


def _add_json(out: tarfile.TarFile, name: str, content: Any) -> None:
    data = json.dumps(content).encode()
    entry = tarfile.TarInfo(name)
    entry.size = len(data)
    out.addfile(entry, io.BytesIO(data))


def _anonymous(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    entry.uid = entry.gid = entry.mtime = 0
    entry.uname = entry.gname = ""
    return entry


def _digest(file: Path) -> str:
    with file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()
