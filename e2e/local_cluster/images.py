"""The project's images, built from their Dockerfiles without an engine and loaded without a registry.

Any engine can build the same Dockerfiles from the repository's root; here their base images are made from Debian
packages.
"""

import hashlib
import tempfile
import tomllib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from e2e.local_cluster.base_image import PYTHON_BASE, SPARK_BASE, BaseImage
from e2e.local_cluster.builder import Builder, Recipe, open_builder
from e2e.local_cluster.cluster import LocalCluster
from e2e.local_cluster.instance import CHECKOUT
from e2e.local_cluster.packages import IMAGE_PROGRAMS, ensure_programs_installed
from e2e.local_cluster.steps import step

__all__ = ["CONSUMER", "OPERATOR", "SPARK", "OurImage", "build_images", "ensure_images", "ensure_spark_images"]

# The sources that all images install from, relative to the repository's root.
SOURCES = (
    ".dockerignore",
    "pyproject.toml",
    "README.md",
    "LICENSE",
    "operator/fleet_operator",
    "consumer_image/fleet_consumer",
)


@dataclass(frozen=True, slots=True)
class OurImage:
    """One of the project's images."""

    name: str
    dockerfile: str
    requirements: str
    base: BaseImage = PYTHON_BASE
    sources: tuple[str, ...] = ()
    """What goes into this image only."""

    @property
    def reference(self) -> str:
        """Name and version, as in manifests."""
        return f"{self.name}:{_project_version()}"

    @property
    def tag(self) -> str:
        """Name in the builder's storage, which changes with the content."""
        return f"localhost/{self.name}:{self.digest()}"

    def digest(self) -> str:
        """Sixteen hex digits that change with anything that goes into the image."""
        content = hashlib.sha256(self.base.tag.encode())
        for file in _files((self.dockerfile, self.requirements, *SOURCES, *self.sources)):
            content.update(f"{file.relative_to(CHECKOUT)}\0{file.stat().st_size}\0".encode())
            content.update(file.read_bytes())
        return content.hexdigest()[:16]

    def recipe(self) -> Recipe:
        """The way to build it."""
        return Recipe(base=self.base, dockerfile=CHECKOUT / self.dockerfile)


OPERATOR = OurImage("consumer-fleet-operator", "operator/Dockerfile", "requirements/operator.txt")
CONSUMER = OurImage("consumer-fleet-consumer", "consumer_image/Dockerfile", "requirements/consumer.txt")
SPARK = OurImage(
    "consumer-fleet-spark",
    "consumer_image/Dockerfile.spark",
    "requirements/spark.txt",
    base=SPARK_BASE,
    sources=("consumer_image/spark",),
)


def build_images(*images: OurImage) -> None:
    """Build the images whose sources changed; they stay in the builder's storage until a cluster wants them.

    Raises ClusterError (``MissingPrograms``, ``DownloadFailed``, ``BuildFailed``).
    """
    ensure_programs_installed(IMAGE_PROGRAMS)
    for image in images:
        with open_builder() as builder:
            _build(builder, image)


def ensure_images(cluster: LocalCluster) -> None:
    """Build the operator's and the worker's image if their sources changed, and load them if the cluster lacks them.

    Raises ClusterError (``MissingPrograms``, ``DownloadFailed``, ``BuildFailed``, ``ImportFailed``, ``NotRunning``).
    """
    for image in (OPERATOR, CONSUMER):
        _ensure(cluster, image)


def ensure_spark_images(cluster: LocalCluster) -> None:
    """The same for the image of Spark jobs (1 GB), which only clusters with such jobs need."""
    _ensure(cluster, SPARK)


def _ensure(cluster: LocalCluster, image: OurImage) -> None:
    ensure_programs_installed(IMAGE_PROGRAMS)
    fingerprint = f"{image.name}-{image.digest()}"
    if cluster.has_image(fingerprint):
        return
    with tempfile.TemporaryDirectory(prefix="fleet-image-") as folder:
        archive = Path(folder, "image.tar")
        with open_builder() as builder:
            _build(builder, image)
            with step(f"pack {image.reference}") as current:
                builder.pack(image.tag, archive, name=f"docker.io/library/{image.reference}")
                current.note = f"{archive.stat().st_size / 2**20:.0f} MiB"
        with step(f"load {image.reference}"):
            cluster.load_image(archive, fingerprint=fingerprint)


def _build(builder: Builder, image: OurImage) -> None:
    """Build the image unless the builder's storage holds it already."""
    if not builder.has(image.tag):
        builder.build(CHECKOUT, tag=image.tag, title=image.name, recipe=image.recipe())
        builder.forget_old_builds(image.name)


def _project_version() -> str:
    with (CHECKOUT / "pyproject.toml").open("rb") as file:
        return str(tomllib.load(file)["project"]["version"])


def _files(places: Iterable[str]) -> Iterator[Path]:
    for place in places:
        path = CHECKOUT / place
        if path.is_dir():
            yield from sorted(each for each in path.rglob("*") if each.is_file() and "__pycache__" not in each.parts)
        else:
            yield path
