"""OCI layouts for tests, of a few small files."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import tarfile
from collections.abc import Mapping
from pathlib import Path


def layer(files: dict[str, str]) -> bytes:
    written = io.BytesIO()
    with tarfile.open(fileobj=written, mode="w") as archive:
        for name, text in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(text.encode())
            archive.addfile(entry, io.BytesIO(text.encode()))
    return gzip.compress(written.getvalue())


def layout(folder: Path, layers: list[bytes], *configs: Mapping[str, object]) -> Path:
    """An OCI layout with an index of one image for each config, all of the same layers."""
    blobs = folder / "blobs" / "sha256"
    blobs.mkdir(parents=True)

    def put(content: bytes) -> dict[str, str]:
        digest = hashlib.sha256(content).hexdigest()
        (blobs / digest).write_bytes(content)
        return {"digest": f"sha256:{digest}"}

    packed = [put(each) for each in layers]
    manifests = [{"config": put(json.dumps(config).encode()), "layers": packed} for config in configs]
    index = {"manifests": [put(json.dumps(manifest).encode()) for manifest in manifests]}
    (folder / "index.json").write_text(json.dumps({"manifests": [put(json.dumps(index).encode())]}))
    return folder
