"""The project's version. It is defined in pyproject.toml, and repeated in the chart, in pages and in examples.

``python -m release tag`` changes the version in all files, so nobody has to know where it occurs.
"""

import os
import re
import subprocess
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from release.errors import ReleaseError

__all__ = [
    "ROOT",
    "Place",
    "check_tagged",
    "command",
    "environment",
    "places",
    "project_version",
    "retagged",
    "set_version",
    "tag",
]

ROOT: Final = Path(__file__).resolve().parents[1]
PROJECT: Final = "pyproject.toml"
CHART: Final = "charts/consumer-fleet/Chart.yaml"
CHANGELOG: Final = "CHANGELOG.md"
NUMBER: Final = r"(?P<version>\d+\.\d+\.\d+)"
ANYWHERE: Final = (
    rf"consumer-fleet-(?:operator|consumer|spark|release):{NUMBER}",
    rf"/consumer-fleet --version {NUMBER}",
)
"""Patterns for names of images and artefacts with a version. They apply to all tracked files except the changelog."""
IN_FILES: Final[Mapping[str, tuple[str, ...]]] = {
    PROJECT: (rf'(?m)^version = "{NUMBER}"$',),
    CHART: (rf"(?m)^version: {NUMBER}$", rf'(?m)^appVersion: "{NUMBER}"$'),
}
"""Patterns by file. Each must match exactly once."""


@dataclass(frozen=True, slots=True)
class Place:
    """An occurrence of a version in a file."""

    file: str
    line: int
    version: str


def project_version(root: Path = ROOT) -> str:
    """Return the version in pyproject.toml."""
    return str(tomllib.loads((root / PROJECT).read_text())["project"]["version"])


def places(root: Path = ROOT) -> list[Place]:
    """Return all occurrences of the version in tracked files. Raises ReleaseError (``VersionMissing``)."""
    found = []
    for name, text in _texts(root):
        matches = sorted((match.start("version"), match["version"]) for match in _matches(name, text))
        found += [Place(name, text.count("\n", 0, start) + 1, version) for start, version in matches]
    return found


def retagged(name: str, text: str, version: str) -> str:
    """Return the text of a file with another version. In the changelog, the heading ``Next: X`` becomes ``X``."""
    if name == CHANGELOG:
        return re.sub(rf"(?m)^## Next: {re.escape(version)}$", f"## {version}", text)
    for match in sorted(_matches(name, text), key=lambda each: each.start("version"), reverse=True):
        text = text[: match.start("version")] + version + text[match.end("version") :]
    return text


def set_version(version: str, root: Path = ROOT) -> list[str]:
    """Write the version to all files that contain it, and return the changed files.

    Raises ReleaseError (``NotAVersion``, ``NoChangelog``, ``VersionMissing``).
    """
    if not re.fullmatch(r"\d+\.\d+\.\d+", version):
        raise ReleaseError("NotAVersion", f"{version!r} is not a version; give three numbers, such as 0.3.0")
    if not re.search(rf"(?m)^## (?:Next: )?{re.escape(version)}$", (root / CHANGELOG).read_text()):
        raise ReleaseError(
            "NoChangelog", f"{CHANGELOG} has no section for {version}; add the heading `## Next: {version}`, or `## …`"
        )
    changes = {name: retagged(name, text, version) for name, text in _texts(root, with_changelog=True)}
    changed = [name for name, text in changes.items() if text != (root / name).read_text()]
    for name in changed:
        (root / name).write_text(changes[name])
    return changed


def tag(version: str, root: Path = ROOT) -> str:
    """Write a new version to all files, or create the tag if the version is already committed.

    The first run changes the files, the second creates the tag, and a third changes nothing. Returns a message with the
    next step. Raises ReleaseError (``NotCommitted``, ``TagElsewhere``, and the reasons of `set_version`).
    """
    changed = set_version(version, root)
    if changed:
        return (
            f"version {version} written to {len(changed)} files: {', '.join(changed)}\n"
            f"next: `make test`, commit, and `python -m release tag {version}` again, which creates the tag"
        )
    edited = command(["git", "status", "--porcelain", "--untracked-files=no"], root).splitlines()
    if edited:
        files = ", ".join(line[3:] for line in edited)
        raise ReleaseError("NotCommitted", f"uncommitted changes in {files}; commit or revert them, then run again")
    name = f"v{version}"
    head = command(["git", "rev-parse", "HEAD"], root).strip()
    if name not in command(["git", "tag", "--list", name], root).split():
        command(["git", "tag", "--annotate", "--message", f"Consumer Fleet {version}", name], root)
        return f"tag {name} created at {head[:12]}\nnext: `git push origin {name}`"
    tagged = command(["git", "rev-parse", f"{name}^{{commit}}"], root).strip()
    if tagged != head:
        raise ReleaseError(
            "TagElsewhere",
            f"tag {name} is at {tagged[:12]}, not at {head[:12]}; a released version never changes: raise the version",
        )
    return f"tag {name} is at {head[:12]} already"


def check_tagged(version: str, commit: str, *, dirty: bool, root: Path = ROOT) -> None:
    """Check that a build was made at the version's tag, without other changes. Raises ReleaseError (``NotTagged``)."""
    name = f"v{version}"
    at = command(["git", "for-each-ref", "--format=%(objectname) %(*objectname)", f"refs/tags/{name}"], root).split()
    remedy = f"build again in a clean clone at the tag; `python -m release tag {version}` creates the tag"
    if dirty:
        raise ReleaseError("NotTagged", f"the build of {commit[:12]} has uncommitted changes; {remedy}")
    if not at or at[-1] != commit:
        seen = f"at {at[-1][:12]}" if at else "missing"
        raise ReleaseError("NotTagged", f"the build is of {commit[:12]}, and the tag {name} is {seen}; {remedy}")


def command(words: list[str], folder: Path) -> str:
    """Run a command and return its standard output. Raises ReleaseError (``CommandFailed``)."""
    done = subprocess.run(words, cwd=folder, env=environment(), capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise ReleaseError("CommandFailed", f"`{' '.join(words)}` in {folder}: {done.stderr.strip()[-2000:]}")
    return done.stdout


def environment() -> dict[str, str]:
    """Return the environment for programs other than cosign: without cosign's variables (key and password)."""
    return {name: value for name, value in os.environ.items() if not name.startswith("COSIGN_")}


def _texts(root: Path, *, with_changelog: bool = False) -> Iterator[tuple[str, str]]:
    """Yield the names and contents of the tracked text files. The changelog is included only if requested."""
    for name in command(["git", "ls-files", "-z"], root).split("\0"):
        path = root / name
        if name and path.is_file() and not path.is_symlink() and (with_changelog or name != CHANGELOG):
            try:
                yield name, path.read_text()
            except UnicodeDecodeError:
                continue


def _matches(name: str, text: str) -> list[re.Match[str]]:
    found = [match for pattern in ANYWHERE for match in re.finditer(pattern, text)]
    for pattern in IN_FILES.get(name, ()):
        own = list(re.finditer(pattern, text))
        if len(own) != 1:
            raise ReleaseError(
                "VersionMissing", f"{name} states the version {len(own)} times; one line must match {pattern}"
            )
        found += own
    return found
