"""The operator's and the worker's image, built from their Dockerfiles without an engine and loaded without a registry.

The Dockerfiles are the same that any engine builds from the repository's root; here buildah runs them in a chroot, with
a storage of its own in the cache, on a base image made from Debian packages.
"""

import hashlib
import json
import re
import sys
import tempfile
import tomllib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from e2e.local_cluster.base_image import BASE_IMAGE, base_archive
from e2e.local_cluster.cache import file_lock, fleet_home
from e2e.local_cluster.cluster import LocalCluster
from e2e.local_cluster.commands import output, run, stream
from e2e.local_cluster.instance import CHECKOUT
from e2e.local_cluster.packages import IMAGE_PROGRAMS, ensure_programs_installed
from e2e.local_cluster.steps import step

__all__ = ["CONSUMER", "OPERATOR", "build_images", "ensure_images"]

HOST_CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")
# What pip needs to know about how this machine reaches packages; the rest of its settings is about other things.
PIP_SETTINGS = ("index-url", "extra-index-url", "find-links", "no-index", "trusted-host", "proxy", "timeout", "retries")
BUILDS_REMEMBERED_MAX = 12
BUILDS_KEPT = 3
# The sources that both images install from, relative to the repository's root.
SOURCES = ("pyproject.toml", "README.md", "LICENSE", "operator/fleet_operator", "consumer_image/fleet_consumer")


@dataclass(frozen=True, slots=True)
class OurImage:
    """One of the project's images."""

    name: str
    dockerfile: str
    requirements: str

    @property
    def reference(self) -> str:
        """Name and version, as manifests write it."""
        return f"{self.name}:{_project_version()}"

    def digest(self) -> str:
        """Sixteen hex digits that change with anything that goes into the image."""
        content = hashlib.sha256(BASE_IMAGE.encode())
        for file in _files((self.dockerfile, self.requirements, *SOURCES)):
            content.update(f"{file.relative_to(CHECKOUT)}\0{file.stat().st_size}\0".encode())
            content.update(file.read_bytes())
        return content.hexdigest()[:16]


OPERATOR = OurImage("consumer-fleet-operator", "operator/Dockerfile", "requirements/operator.txt")
CONSUMER = OurImage("consumer-fleet-consumer", "consumer_image/Dockerfile", "requirements/consumer.txt")


def build_images() -> None:
    """Build both images if their sources changed; they stay in the builder's storage until a cluster wants them.

    Raises ClusterError (``MissingPrograms``, ``DownloadFailed``, ``BuildFailed``).
    """
    ensure_programs_installed(IMAGE_PROGRAMS)
    for image in (OPERATOR, CONSUMER):
        with _built(image):
            pass


def ensure_images(cluster: LocalCluster) -> None:
    """Build both images if their sources changed, and load them if the cluster does not have them.

    Raises ClusterError (``MissingPrograms``, ``DownloadFailed``, ``BuildFailed``, ``ImportFailed``, ``NotRunning``).
    """
    ensure_programs_installed(IMAGE_PROGRAMS)
    for image in (OPERATOR, CONSUMER):
        fingerprint = f"{image.name}-{image.digest()}"
        if cluster.has_image(fingerprint):
            continue
        with tempfile.TemporaryDirectory(prefix="fleet-image-") as folder:
            archive = Path(folder, "image.tar")
            _pack(image, archive)
            with step(f"load {image.reference}"):
                cluster.load_image(archive, fingerprint=fingerprint)


def _pack(image: OurImage, archive: Path) -> None:
    """Write an archive of the image; builds only what the builder's storage does not hold already."""
    with _built(image) as (buildah, trust, tag), step(f"pack {image.reference}") as current:
        target = f"docker-archive:{archive}:docker.io/library/{image.reference}"
        run([*buildah, "push", "--quiet", *trust, tag, target], reason="BuildFailed")
        current.note = f"{archive.stat().st_size / 2**20:.0f} MiB"


@contextmanager
def _built(image: OurImage) -> Iterator[tuple[list[str], list[str], str]]:
    """Holds the builder, whose storage has the image: the words that start it, those for trust, the image's tag."""
    storage = fleet_home() / "buildah"
    tag = f"localhost/{image.name}:{image.digest()}"
    with file_lock(fleet_home() / ".buildah.lock", purpose="building images"):
        storage.mkdir(parents=True, exist_ok=True)
        policy = storage / "policy.json"
        policy.write_text('{"default": [{"type": "insecureAcceptAnything"}]}\n')
        buildah = ["buildah", "--root", str(storage / "root"), "--runroot", str(storage / "run")]
        trust = ["--signature-policy", str(policy)]
        if output([*buildah, "inspect", "--type=image", BASE_IMAGE]) is None:
            base = base_archive()
            with step("base image: give it to the builder"):
                run([*buildah, "pull", *trust, f"docker-archive:{base}"], reason="BuildFailed")
        if output([*buildah, "inspect", "--type=image", tag]) is None:
            with step(f"build {image.reference}") as current, tempfile.TemporaryDirectory() as scratch:
                stream(
                    [*buildah, *_build_arguments(image, tag, Path(scratch)), *trust, str(CHECKOUT)],
                    log=fleet_home() / "logs" / f"{image.name}-build.log",
                    on_line=lambda line: setattr(current, "note", line[:80]),
                    reason="BuildFailed",
                )
                current.note = ""
            _forget_old_builds(buildah, image)
        yield buildah, trust, tag


def _forget_old_builds(buildah: list[str], image: OurImage) -> None:
    """Bound the builder's storage: a build costs it some megabytes, and every change of the sources makes one."""
    listed = json.loads(output([*buildah, "images", "--json"]) or "[]")
    builds = [each for each in listed if any(f"/{image.name}:" in name for name in each.get("names") or ())]
    builds.sort(key=lambda each: str(each["createdatraw"]))
    if len(builds) > BUILDS_REMEMBERED_MAX:
        for each in builds[:-BUILDS_KEPT]:
            output([*buildah, "rmi", each["id"]])
        # What no image stands on any more; this also forgets some steps that the next build repeats.
        output([*buildah, "rmi", "--prune"])


def _build_arguments(image: OurImage, tag: str, scratch: Path) -> list[str]:
    pip_config = scratch / "pip.conf"
    settings = _pip_settings()
    pip_config.write_text("[global]\n" + "".join(f"{key} = {value}\n" for key, value in settings.items()))
    mounts = {pip_config: "/etc/pip.conf"}
    if HOST_CERTIFICATES.exists():
        # Behind a proxy that re-signs connections only the host's own list of authorities knows who signed.
        mounts[HOST_CERTIFICATES] = str(HOST_CERTIFICATES)
    mounts |= {Path(place): place for place in settings.get("find-links", "").split() if Path(place).is_dir()}
    arguments = ["bud", "--layers", "--isolation", "chroot", "--network", "host", "--pull-never"]
    arguments += ["--build-arg", f"BASE_IMAGE={BASE_IMAGE}", "--file", str(CHECKOUT / image.dockerfile), "--tag", tag]
    for source, target in mounts.items():
        arguments += ["--volume", f"{source}:{target}:ro"]
    return arguments


def _pip_settings() -> dict[str, str]:
    """This machine's settings of pip: its files' and the environment's, which win, as pip itself reports them."""
    listed = output([sys.executable, "-m", "pip", "config", "list"]) or ""
    found: dict[str, str] = {}
    for line in sorted(listed.splitlines(), key=lambda line: line.startswith(":env:")):
        match = re.fullmatch(r"(?::env:|global|install|site|user)\.([a-z-]+)='(.*)'", line)
        if match and match[1] in PIP_SETTINGS:
            found[match[1]] = match[2].replace("\\n", " ")
    if HOST_CERTIFICATES.exists():
        found["cert"] = str(HOST_CERTIFICATES)
    return found


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
