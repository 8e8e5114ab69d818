"""Images that hold a single program: the pod sandbox and the name service."""

from pathlib import Path

from e2e.local_cluster import versions
from e2e.local_cluster.archives import ImageSettings, write_image, write_layer
from e2e.local_cluster.cache import cache_entry, fleet_home
from e2e.local_cluster.gomodules import COREDNS, PAUSE, GoPrograms, ensure_programs

__all__ = ["COREDNS_IMAGE", "PAUSE_IMAGE", "coredns_archive", "pause_archive"]

PAUSE_IMAGE = f"docker.io/local-cluster/pause:{PAUSE.version}"
COREDNS_IMAGE = f"docker.io/local-cluster/coredns:{versions.COREDNS}"


def pause_archive() -> Path:
    """The archive of the image that every pod's sandbox runs."""
    return _program_image(PAUSE, PAUSE_IMAGE)


def coredns_archive() -> Path:
    """The archive of the name service's image."""
    return _program_image(COREDNS, COREDNS_IMAGE)


def _program_image(wanted: GoPrograms, image: str) -> Path:
    (program,) = wanted.programs
    source = ensure_programs(wanted) / program

    def make(into: Path) -> None:
        layer = into / "layer.tar"
        write_layer(layer, {f"/{program}": source})
        write_image(into / "image.tar", image, [layer], ImageSettings(entrypoint=[f"/{program}"]))
        layer.unlink()

    folder = fleet_home() / "images" / f"{wanted.name}-{wanted.version}-{wanted.digest()}"
    return cache_entry(folder, make, purpose=f"packing {wanted.name}") / "image.tar"
