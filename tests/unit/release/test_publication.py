"""Builds that are not published: incomplete ones, and those of something else than a tag."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from release.cli import main
from release.publication import NAMES


def build(folder: Path, names: frozenset[str], *, dirty: bool = False) -> str:
    """A folder with the files that publish reads first."""
    manifest = {
        "version": "99.0.0",
        "registry": "localhost:1",
        "commit": "f" * 40,
        "dirty": dirty,
        "artefacts": dict.fromkeys(names, f"sha256:{'0' * 64}"),
    }
    text = json.dumps(manifest)
    (folder / "release.json").write_text(text)
    (folder / "SHA256SUMS").write_text(f"{hashlib.sha256(text.encode()).hexdigest()}  release.json\n")
    return str(folder)


def test_build_without_images_is_refused_even_for_tests(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=r"NotBuilt: .* has no consumer-fleet-operator, consumer-fleet-spark"):
        main(["publish", build(tmp_path, NAMES - {"consumer-fleet-operator", "consumer-fleet-spark"}), "--key", "x"])


def test_build_of_a_commit_without_the_tag_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=r"NotTagged: .*ffffffffffff.*v99\.0\.0 is missing"):
        main(["publish", build(tmp_path, NAMES), "--key", "x"])


def test_build_of_changed_files_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=r"NotTagged: .* uncommitted changes"):
        main(["publish", build(tmp_path, NAMES, dirty=True), "--key", "x"])


def test_missing_layout_is_named_before_anything_is_pushed(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=r"Damaged: .*oci/consumer-fleet.* is missing"):
        main(["publish", build(tmp_path, NAMES), "--key", "x", "--untagged"])
