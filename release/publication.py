"""Publication of a release: packs the artefacts for a registry, pushes, signs and verifies them.

The artefact ``consumer-fleet-release`` contains all files, including SHA256SUMS and ``release.json``. The latter
contains the digests of the other artefacts. So the signature of this artefact covers the whole release.
Decision: docs/decisions/0066-release-artefacts.md.
"""

import json
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import yaml

from e2e.local_cluster.steps import step
from release.artefacts import BUNDLE, OCI, PUBLIC_KEY, SUMS, Release, sha256, write_sums
from release.errors import ReleaseError
from release.images import IMAGES
from release.registry import Registry, layout_digest, push_to_layout, sign_file, verify_file, write_public_key
from release.version import ROOT, check_tagged

__all__ = ["CHART", "FILES", "MANIFEST", "check_files", "pack", "publish", "verify"]

CHART: Final = "consumer-fleet"
FILES: Final = "consumer-fleet-release"
MANIFEST: Final = "release.json"
NAMES: Final = frozenset({CHART, *(image.name for image in IMAGES)})
"""Names of the artefacts that the manifest of a complete release must contain."""
CHART_CONFIG: Final = "application/vnd.cncf.helm.config.v1+json"
CHART_CONTENT: Final = "application/vnd.cncf.helm.chart.content.v1.tar+gzip"
TITLE: Final = "org.opencontainers.image.title"
"""Annotation of a layer. `oras` uses it as the file name."""
FILES_TYPE: Final = "application/vnd.consumerfleet.release.v1"
MEDIA_TYPES: Final = {
    ".whl": "application/zip",
    ".gz": "application/gzip",
    ".tgz": "application/gzip",
    ".yaml": "application/yaml",
    ".json": "application/json",
    "": "text/plain",
}


def pack(release: Release, images: list[str]) -> None:
    """Write OCI layouts of the chart and of all files. The layouts of `images` must exist. Raises ReleaseError."""
    _pack_chart(release)
    digests = {name: layout_digest(release.folder / OCI / name, release.version) for name in (*images, CHART)}
    manifest = {
        "version": release.version,
        "registry": release.registry,
        "commit": release.commit,
        "dirty": release.dirty,
        "artefacts": digests,
    }
    (release.folder / MANIFEST).write_text(json.dumps(manifest, indent=1, sort_keys=True) + "\n")
    write_sums(release)
    listed = [line.split()[1] for line in (release.folder / SUMS).read_text().splitlines()]
    files = {name: MEDIA_TYPES[Path(name).suffix] for name in (*listed, SUMS)}
    options = ["--artifact-type", FILES_TYPE, *_created(release)]
    push_to_layout(release.folder / OCI / FILES, release.version, files, options, release.folder)


def publish(folder: Path, key: str, *, untagged: bool = False) -> None:
    """Push and sign the artefacts of a build, except those that are already pushed and signed.

    Images are pushed first, so a published chart never refers to missing images. All artefacts are checked before the
    first push. `untagged` allows a build of any state of the clone, for tests. Raises ReleaseError (``NotBuilt``,
    ``NotTagged``, ``Damaged``, ``AlreadyPublished``, ``LoginFailed``, ``SigningFailed``, ...).
    """
    manifest_file = folder / MANIFEST
    if not manifest_file.exists():
        raise ReleaseError(
            "NotBuilt", f"{folder} has no {MANIFEST}; run `python -m release build --into {folder}` first"
        )
    check_files(folder)
    manifest = json.loads(manifest_file.read_text())
    missing = sorted(NAMES - set(manifest["artefacts"]))
    if missing:
        raise ReleaseError("NotBuilt", f"{folder} has no {', '.join(missing)}; build it without --without-images")
    if not untagged:
        check_tagged(manifest["version"], manifest["commit"], dirty=manifest["dirty"])
    _check_layouts(folder, manifest)
    registry, version = Registry(manifest["registry"]), str(manifest["version"])
    public_key = folder / PUBLIC_KEY
    write_public_key(key, public_key)
    _sign_sums(folder, key)
    images = [name for name in manifest["artefacts"] if name != CHART]
    for name in (*images, FILES, CHART):
        with step(f"{name}: push and sign") as current:
            digest = registry.push(folder / OCI / name, name, version)
            signed = registry.sign(name, digest, key, str(public_key))
            current.note = digest if signed else "published and signed before"


def verify(registry: Registry, version: str, public_key: str) -> dict[str, str]:
    """Check the signatures and digests of a published release. Returns the digest of each artefact by name.

    Raises ReleaseError (``NotFound``, ``NotSigned``, ``Damaged``). ``Damaged`` means that a file or tag differs from
    the signed release, or that the signed release is for another registry or version.
    """
    digest = _digest(registry, FILES, version)
    registry.verify(FILES, digest, public_key)
    with tempfile.TemporaryDirectory(prefix="fleet-verify-") as scratch:
        registry.pull(FILES, digest, Path(scratch))
        check_files(Path(scratch))
        manifest = json.loads(Path(scratch, MANIFEST).read_text())
    _check_manifest(manifest, registry, version)
    digests = {FILES: digest, **manifest["artefacts"]}
    for name, wanted in manifest["artefacts"].items():
        found = _digest(registry, name, version)
        if found != wanted:
            raise ReleaseError(
                "Damaged",
                f"{registry.reference(name, version)} is {found}, not {wanted} as in the release: it was replaced "
                "after the publication; do not use it, and report it as SECURITY.md describes",
            )
        registry.verify(name, found, public_key)
        print(f"signed  {registry.reference(name, found)}", file=sys.stderr)
    return digests


def check_files(folder: Path) -> None:
    """Check all files of a folder that are listed in its SHA256SUMS. Raises ReleaseError (``Damaged``)."""
    sums = folder / SUMS
    if not sums.is_file():
        raise ReleaseError("Damaged", f"{sums} is missing: this is not a release; build or download it again")
    for line in sums.read_text().splitlines():
        digest, name = line.split()
        file = folder / name
        if not file.is_file() or sha256(file) != digest:
            raise ReleaseError(
                "Damaged",
                f"{file} is {'not that of the checksums' if file.is_file() else 'missing'}; build or download it again",
            )


def _check_layouts(folder: Path, manifest: dict[str, Any]) -> None:
    """Check the OCI layouts against the manifest and the files, and the digest of every blob. Raises ReleaseError."""
    for name in (*manifest["artefacts"], FILES):
        layout = folder / OCI / name
        if not (layout / "index.json").is_file():
            raise ReleaseError("Damaged", f"{layout} is missing; build it again")
        for blob in sorted((layout / "blobs" / "sha256").iterdir()):
            if sha256(blob) != blob.name:
                raise ReleaseError("Damaged", f"the content of {blob} does not match its name; build the release again")
        found = layout_digest(layout, manifest["version"])
        same = _has_files(layout, found, folder) if name == FILES else found == manifest["artefacts"][name]
        if not same:
            raise ReleaseError(
                "Damaged", f"{layout} has the digest {found}, unlike {folder / MANIFEST}; build it again"
            )


def _has_files(layout: Path, digest: str, folder: Path) -> bool:
    """Return True if the layout contains exactly the files in SHA256SUMS, with the same content as in the folder."""
    content = json.loads((layout / "blobs" / digest.replace(":", "/")).read_text())
    packed = {each["annotations"][TITLE]: each["digest"] for each in content["layers"]}
    names = [line.split()[1] for line in (folder / SUMS).read_text().splitlines()]
    return packed == {name: f"sha256:{sha256(folder / name)}" for name in (*names, SUMS)}


def _check_manifest(manifest: dict[str, Any], registry: Registry, version: str) -> None:
    """Check that the signed release has the requested version and registry. The tag may have been moved to an older
    signed release. Raises ReleaseError (``Damaged``)."""
    asked = registry.reference(FILES, version)
    if (manifest["version"], manifest["registry"]) != (version, registry.name):
        raise ReleaseError(
            "Damaged",
            f"{asked} contains the signed release {manifest['version']} for {manifest['registry']}, not {version} for "
            f"{registry.name}: it was moved or copied; verify a mirror's original, otherwise do not use it, and report "
            "it as SECURITY.md describes",
        )
    missing = sorted(NAMES - set(manifest["artefacts"]))
    if missing:
        raise ReleaseError("Damaged", f"{asked} is signed, but has no {', '.join(missing)}; do not use it")


def _pack_chart(release: Release) -> None:
    package = f"{CHART}-{release.version}.tgz"
    # Do not use `helm push`, which writes the current time into the manifest, so the digest differs at each push.
    with tempfile.TemporaryDirectory(prefix="fleet-chart-") as scratch:
        config = Path(scratch, "config.json")
        config.write_text(json.dumps(yaml.safe_load((ROOT / "charts/consumer-fleet/Chart.yaml").read_text())))
        options = ["--disable-path-validation", "--config", f"{config}:{CHART_CONFIG}", *_created(release)]
        push_to_layout(release.folder / OCI / CHART, release.version, {package: CHART_CONTENT}, options, release.folder)


def _created(release: Release) -> list[str]:
    when = datetime.fromtimestamp(release.commit_time, UTC).isoformat().replace("+00:00", "Z")
    return ["--annotation", f"org.opencontainers.image.created={when}"]


def _sign_sums(folder: Path, key: str) -> None:
    """Sign SHA256SUMS if it is not signed yet, for users who do not get the files from the registry."""
    sums, bundle = folder / SUMS, folder / BUNDLE
    try:
        verify_file(sums, bundle, str(folder / PUBLIC_KEY))
    except ReleaseError:
        sign_file(sums, bundle, key)


def _digest(registry: Registry, name: str, version: str) -> str:
    found = registry.digest(name, version)
    if found is None:
        raise ReleaseError("NotFound", f"there is no {registry.reference(name, version)}; check registry and version")
    return found
