"""The three images as OCI layouts, with an SBOM for each architecture.

By default, the images are built in the same way as for the embedded test cluster, for this machine's architecture.
Alternatively, they are copied from OCI layouts of another builder, which may support several architectures.
"""

import shutil
from functools import partial
from pathlib import Path
from typing import Final

from e2e.local_cluster.builder import open_builder
from e2e.local_cluster.cache import fleet_home
from e2e.local_cluster.commands import run
from e2e.local_cluster.images import CONSUMER, OPERATOR, SPARK, OurImage, build_images
from release import sbom
from release.artefacts import OCI, Artefact, Release, sha256
from release.errors import ReleaseError

__all__ = ["IMAGES", "image_artefacts", "layers_table"]

IMAGES: Final = (OPERATOR, CONSUMER, SPARK)
MEBIBYTE: Final = 2**20


def image_artefacts(release: Release, given: Path | None) -> list[Artefact]:
    """Return the images as artefacts. They are built, or copied from the layouts in `given`. Raises ReleaseError
    (``NoImage``)."""
    found = []
    for image in IMAGES:
        if given is None:
            source = image.digest()
        elif (given / image.name / "index.json").is_file():
            source = sha256(given / image.name / "index.json")
        else:
            raise ReleaseError("NoImage", f"{given} has no OCI layout {image.name}; build all three images into it")
        found.append(Artefact(image.name, f"{source} {release!r}", partial(_make, release, image, given)))
    return found


def layers_table(layout: Path) -> list[str]:
    """Return the lines of a table with the compressed size of each layer of each image in a layout."""
    lines = []
    for architecture, _, layers in sbom.read_layout(layout):
        sizes = [layer.stat().st_size / MEBIBYTE for layer in layers]
        lines += [f"{layout.name} {architecture}  layer {number}  {size:7.1f} MiB" for number, size in enumerate(sizes)]
        lines.append(f"{layout.name} {architecture}  total    {sum(sizes):7.1f} MiB")
    return lines


def _make(release: Release, image: OurImage, given: Path | None, into: Path) -> None:
    """Write the layout of an image, and an SBOM for each architecture."""
    layout = into / OCI / image.name
    if given is not None:
        shutil.copytree(given / image.name, layout)
    else:
        build_images(image)
        layout.parent.mkdir(parents=True)
        _export(image, layout, release.version)
    for architecture, digest, layers in sbom.read_layout(layout):
        text = sbom.of_image(image.name, release.version, digest, sbom.read_contents(layers), release.commit_time)
        (into / f"{image.name}-{release.version}-{architecture}.cdx.json").write_text(text)


def _export(image: OurImage, layout: Path, version: str) -> None:
    """Export a built image from the builder's storage to an OCI layout. Raises ClusterError (``BuildFailed``)."""
    with open_builder():
        storage = fleet_home() / "buildah"
        words: list[str | Path] = [
            "buildah",
            "--root",
            storage / "root",
            "--runroot",
            storage / "run",
            "push",
            "--quiet",
        ]
        words += ["--signature-policy", storage / "policy.json", image.tag, f"oci:{layout}:{version}"]
        run(words, reason="BuildFailed")
