"""Container images from Dockerfiles without an engine: buildah in a chroot, with its own storage in the cache.

Nothing is pulled: a Dockerfile begins FROM an image in the storage, such as the base image made from Debian packages.
`pip` inside a build reaches packages as it does on this machine.
"""

import json
import re
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from e2e.local_cluster.base_image import PYTHON_BASE, BaseImage, base_archive
from e2e.local_cluster.cache import file_lock, fleet_home
from e2e.local_cluster.commands import output, run, stream
from e2e.local_cluster.steps import step

__all__ = ["Builder", "Recipe", "open_builder"]

HOST_CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")
# The settings with which pip reaches packages on this machine; others do not matter here.
PIP_SETTINGS = ("index-url", "extra-index-url", "find-links", "no-index", "trusted-host", "proxy", "timeout", "retries")
BUILDS_REMEMBERED_MAX = 12
BUILDS_KEPT = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """Inputs of a build other than its context."""

    base: BaseImage = PYTHON_BASE
    """Passed to the Dockerfile as the argument BASE_IMAGE."""
    dockerfile: Path | None = None
    """None for the Dockerfile of the context."""


@contextmanager
def open_builder() -> Iterator["Builder"]:
    """Lock the builder: one process builds at a time."""
    storage = fleet_home() / "buildah"
    with file_lock(fleet_home() / ".buildah.lock", purpose="building images"):
        storage.mkdir(parents=True, exist_ok=True)
        yield Builder(storage)


class Builder:
    """Builds, runs and packs images of one storage; every failure is a ClusterError (``BuildFailed``).

    A build whose base image is missing in the storage creates it first (``DownloadFailed``).
    """

    def __init__(self, storage: Path) -> None:
        policy = storage / "policy.json"
        policy.write_text('{"default": [{"type": "insecureAcceptAnything"}]}\n')
        self._buildah = ["buildah", "--root", str(storage / "root"), "--runroot", str(storage / "run")]
        self._trust = ["--signature-policy", str(policy)]

    def has(self, tag: str) -> bool:
        """True if the storage holds an image of this name."""
        return output([*self._buildah, "inspect", "--type=image", tag]) is not None

    def take(self, archive: Path) -> None:
        """Add an image from its archive."""
        run([*self._buildah, "pull", *self._trust, f"docker-archive:{archive}"], reason="BuildFailed")

    def build(self, context: Path, *, tag: str, title: str, recipe: Recipe) -> None:
        """Build a Dockerfile; the log is named after the title."""
        self._ensure_base(recipe.base)
        with step(f"build {title}") as current, tempfile.TemporaryDirectory() as scratch:
            words = ["bud", "--layers", "--force-rm", "--isolation", "chroot", "--network", "host", "--pull-never"]
            words += ["--file", str(recipe.dockerfile or context / "Dockerfile"), "--tag", tag]
            words += ["--build-arg", f"BASE_IMAGE={recipe.base.tag}"]
            for source, target in _mounts(Path(scratch)).items():
                words += ["--volume", f"{source}:{target}:ro"]
            stream(
                [*self._buildah, *words, *self._trust, str(context)],
                log=fleet_home() / "logs" / f"{re.sub(r'[^a-z0-9.-]+', '-', title)}-build.log",
                on_line=lambda line: setattr(current, "note", line[:80]),
                reason="BuildFailed",
            )
            current.note = ""

    def _ensure_base(self, base: BaseImage) -> None:
        if not self.has(base.tag):
            archive = base_archive(base)
            with step(f"{base.name}: give it to the builder"):
                self.take(archive)

    def pack(self, tag: str, archive: Path, *, name: str) -> None:
        """Write the image's archive, with the full name for its use elsewhere."""
        run(
            [*self._buildah, "push", "--quiet", *self._trust, tag, f"docker-archive:{archive}:{name}"],
            reason="BuildFailed",
        )

    def run(self, tag: str, command: Sequence[str]) -> str:
        """Output of a command in a container of the image, as the image's user and in its working directory."""
        container = run([*self._buildah, "from", "--pull-never", *self._trust, tag], reason="BuildFailed").strip()
        try:
            words = ["run", "--isolation", "chroot", "--network", "host", container, "--", *command]
            return run([*self._buildah, *words], reason="CommandFailed")
        finally:
            run([*self._buildah, "rm", container], reason="BuildFailed")

    def remove(self, tag: str) -> None:
        """Remove a name, and the image if it was its last."""
        output([*self._buildah, "rmi", tag])

    def forget_old_builds(self, name: str) -> None:
        """Limit the storage: each change of the sources causes a build, which adds some megabytes."""
        listed = json.loads(output([*self._buildah, "images", "--json"]) or "[]")
        builds = [each for each in listed if any(f"localhost/{name}:" in tag for tag in each.get("names") or ())]
        builds.sort(key=lambda each: str(each["createdatraw"]))
        if len(builds) > BUILDS_REMEMBERED_MAX:
            for each in builds[:-BUILDS_KEPT]:
                output([*self._buildah, "rmi", each["id"]])
            # Layers without an image; this also drops some steps, which the next build repeats.
            output([*self._buildah, "rmi", "--prune"])


def _mounts(scratch: Path) -> dict[Path, str]:
    """Files of this machine that `pip` needs inside, by their place here."""
    pip_config = scratch / "pip.conf"
    settings = _pip_settings()
    pip_config.write_text("[global]\n" + "".join(f"{key} = {value}\n" for key, value in settings.items()))
    mounts = {pip_config: "/etc/pip.conf"}
    if HOST_CERTIFICATES.exists():
        # Behind a proxy that re-signs connections, only the host's list of authorities has the signer.
        mounts[HOST_CERTIFICATES] = str(HOST_CERTIFICATES)
    return mounts | {Path(place): place for place in settings.get("find-links", "").split() if Path(place).is_dir()}


def _pip_settings() -> dict[str, str]:
    """This machine's pip settings as pip reports them: of its files, overridden by the environment."""
    listed = output([sys.executable, "-m", "pip", "config", "list"]) or ""
    found: dict[str, str] = {}
    for line in sorted(listed.splitlines(), key=lambda line: line.startswith(":env:")):
        match = re.fullmatch(r"(?::env:|global|install|site|user)\.([a-z-]+)='(.*)'", line)
        if match and match[1] in PIP_SETTINGS:
            found[match[1]] = match[2].replace("\\n", " ")
    if HOST_CERTIFICATES.exists():
        found["cert"] = str(HOST_CERTIFICATES)
    return found
