"""Artefacts of a release in a folder: distribution, CRDs, chart, checksums.

The file ``build.json`` in the folder contains the digests of each artefact's inputs and files. An artefact is built
only if one of these digests differs. So a repeated build does nothing, and an interrupted build continues.
"""

import hashlib
import json
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import yaml

from e2e.local_cluster.gomodules import HELM, ensure_programs
from e2e.local_cluster.steps import step
from release import sbom
from release.errors import ReleaseError
from release.version import ROOT, command, project_version

__all__ = [
    "BUNDLE",
    "OCI",
    "PUBLIC_KEY",
    "SUMS",
    "Artefact",
    "Release",
    "file_artefacts",
    "make",
    "sha256",
    "write_sums",
]

STATE: Final = "build.json"
SUMS: Final = "SHA256SUMS"
BUNDLE: Final = f"{SUMS}.sigstore.json"
PUBLIC_KEY: Final = "cosign.pub"
OCI: Final = "oci"
"""Name of the folder that contains an OCI layout for each artefact to be pushed to the registry."""
CHART: Final = "charts/consumer-fleet"
DISTRIBUTION: Final = (
    "pyproject.toml",
    "README.md",
    "LICENSE",
    "operator/fleet_operator",
    "consumer_image/fleet_consumer",
)
LOCKS: Final = ("operator", "consumer", "spark")
"""Lock files of the packages that users install. All other lock files are for tests and tools."""


@dataclass(frozen=True, slots=True)
class Release:
    """A release: its version, the folder of its artefacts, and the default registry of its chart."""

    folder: Path
    registry: str
    """Host with an optional path, such as registry.example.com/fleet. The chart pulls images from it by default."""
    version: str
    commit_time: int
    """Time of the released commit in epoch seconds, and the modification time of all files in archives."""
    commit: str = field(default="", repr=False)
    """The commit of the build. It is not in `repr`, because only `release.json` depends on it."""
    dirty: bool = field(default=False, repr=False)
    """True if the clone had uncommitted changes, or untracked files that are not ignored."""

    @classmethod
    def of_checkout(cls, folder: Path, registry: str) -> "Release":
        """Create the release of the files in this clone. Raises ReleaseError (``NotARegistry``, ``CommandFailed``)."""
        if not re.fullmatch(r"[\w.-]+(:\d+)?(/[a-z0-9._-]+)*", registry):
            raise ReleaseError(
                "NotARegistry", f"{registry!r} does not name a registry; give a host and a path, as in ghcr.io/example"
            )
        folder.mkdir(parents=True, exist_ok=True)
        when, commit = command(["git", "log", "-1", "--format=%ct %H"], ROOT).split()
        dirty = bool(command(["git", "status", "--porcelain"], ROOT).strip())
        return cls(folder.absolute(), registry, project_version(), int(when), commit, dirty)


@dataclass(frozen=True, slots=True)
class Artefact:
    """One or more files of a release that are built together."""

    name: str
    inputs: str
    """Digest of everything that determines the content of the files."""
    make: Callable[[Path], None]
    """Function that writes the files to an empty folder."""


def make(release: Release, artefact: Artefact) -> None:
    """Build an artefact, unless the folder already contains its files from the same inputs."""
    state_file = release.folder / STATE
    state = json.loads(state_file.read_text()) if state_file.exists() else {}
    present = state.get(artefact.name)
    if present and present["inputs"] == artefact.inputs and _is_complete(release.folder, present["files"]):
        print(f"{'':8}    there  {artefact.name}", file=sys.stderr, flush=True)
        return
    with step(artefact.name), tempfile.TemporaryDirectory(prefix=".making-", dir=release.folder) as scratch:
        made = Path(scratch)
        artefact.make(made)
        files = {str(file.relative_to(made)): sha256(file) for file in _files([made])}
        for name in (present or {"files": {}})["files"]:
            (release.folder / name).unlink(missing_ok=True)
        for name in files:
            (release.folder / name).parent.mkdir(parents=True, exist_ok=True)
            (made / name).replace(release.folder / name)
    state[artefact.name] = {"inputs": artefact.inputs, "files": files}
    written = state_file.with_suffix(".new")
    written.write_text(json.dumps(state, indent=1, sort_keys=True))
    written.replace(state_file)


def file_artefacts(release: Release, digests: Mapping[str, str]) -> list[Artefact]:
    """Return the artefacts that are files: wheel and sdist, their SBOM, the CRDs as one file, and the chart.

    `digests` are the digests of the images by name, which are written into the chart.
    """
    return [
        Artefact("distribution", _digest(DISTRIBUTION, release.commit_time), lambda into: _distribution(release, into)),
        Artefact("sbom", _digest(["requirements"], repr(release)), lambda into: _sbom(release, into)),
        Artefact("crds", _digest(["crds"], release.version), lambda into: _crds(release, into)),
        Artefact(
            "chart",
            _digest([CHART, "crds"], f"{release!r} {sorted(digests.items())}"),
            lambda into: _chart(release, digests, into),
        ),
    ]


def write_sums(release: Release) -> None:
    """Write the checksums of all files in the folder. OCI layouts are left out, because they contain their own
    digests."""
    own = {STATE, SUMS, BUNDLE, PUBLIC_KEY}
    listed = sorted(file.name for file in release.folder.iterdir() if file.is_file() and file.name not in own)
    text = "".join(f"{sha256(release.folder / name)}  {name}\n" for name in listed)
    (release.folder / SUMS).write_text(text)


def _distribution(release: Release, into: Path) -> None:
    """Build the sdist from the tracked files, and the wheel from the sdist, which proves that the sdist is complete."""
    with _copy_of(DISTRIBUTION, release.commit_time) as source:
        words = [sys.executable, "-m", "build", "--outdir", str(into), str(source)]
        command(["env", f"SOURCE_DATE_EPOCH={release.commit_time}", *words], ROOT)


def sha256(file: Path) -> str:
    """Return the SHA-256 digest of a file in hexadecimal."""
    with file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


def _sbom(release: Release, into: Path) -> None:
    packages = sbom.locked((ROOT / "requirements" / f"{lock}.txt").read_text() for lock in LOCKS)
    text = sbom.of_distribution("consumer-fleet", release.version, packages, release.commit_time)
    (into / f"consumer-fleet-{release.version}.cdx.json").write_text(text)


def _crds(release: Release, into: Path) -> None:
    texts = [file.read_text().removeprefix("---\n").rstrip() for file in sorted((ROOT / "crds").glob("*.yaml"))]
    text = "".join(f"---\n{each}\n" for each in texts)
    (into / f"consumer-fleet-crds-{release.version}.yaml").write_text(text)


def _chart(release: Release, digests: Mapping[str, str], into: Path) -> None:
    """Package the chart with the release's registry and images as its defaults.

    For an image without a digest, the chart uses its own version as the tag.
    """
    with _copy_of([CHART, "crds"], release.commit_time) as source:
        values = source / CHART / "values.yaml"
        text = _with_value(values.read_text(), "imageRegistry", r"^imageRegistry: ", release.registry)
        for name, digest in digests.items():
            text = _with_value(
                text, f"{name}'s digest", rf"^ +repository: {name}\n(?: +(?:#|tag:).*\n)* +digest: ", digest
            )
        values.write_text(text)
        os.utime(values, (release.commit_time, release.commit_time))
        helm = str(ensure_programs(HELM) / "helm")
        command([helm, "package", str(source / CHART), "--destination", str(into)], source)
        made = yaml.safe_load((source / CHART / "Chart.yaml").read_text())["version"]
    if made != release.version:
        raise ReleaseError(
            "VersionsDiffer",
            f"the chart is {made} and pyproject.toml {release.version}; run `python -m release version`",
        )


def _with_value(text: str, what: str, before: str, value: str) -> str:
    """Return values.yaml with `value` in place of the empty value that follows the pattern `before`."""
    changed, times = re.subn(rf'(?m)({before})""$', rf"\g<1>{value}", text)
    if times != 1:
        raise ReleaseError("ChartDiffers", f"{CHART}/values.yaml has {times} empty values for {what}, wanted 1")
    return changed


@contextmanager
def _copy_of(places: Iterable[str], when: int) -> Iterator[Path]:
    """Copy the tracked files below these paths to a temporary folder, and set all modification times to `when`.

    Symbolic links to folders are replaced by copies of the folders.
    """
    with tempfile.TemporaryDirectory(prefix="fleet-release-") as folder:
        names = command(["git", "ls-files", "-z", "--", *places], ROOT).split("\0")
        for name in filter(None, names):
            target = Path(folder, name)
            target.parent.mkdir(parents=True, exist_ok=True)
            (shutil.copytree if (ROOT / name).is_dir() else shutil.copyfile)(ROOT / name, target)
        for file in _files([Path(folder)]):
            os.utime(file, (when, when))
        yield Path(folder)


def _digest(places: Iterable[str], settings: object) -> str:
    content = hashlib.sha256(repr(settings).encode())
    for name in command(["git", "ls-files", "-z", "--", *places], ROOT).split("\0"):
        if name and (ROOT / name).is_file():
            content.update(f"{name}\0{sha256(ROOT / name)}\n".encode())
    return content.hexdigest()


def _is_complete(folder: Path, files: dict[str, str]) -> bool:
    return all((folder / name).is_file() and sha256(folder / name) == digest for name, digest in files.items())


def _files(places: Iterable[Path]) -> Iterator[Path]:
    for place in places:
        yield from sorted(path for path in place.rglob("*") if path.is_file())
