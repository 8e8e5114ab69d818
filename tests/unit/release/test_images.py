"""Images that another builder made: taken into the release with an SBOM for each architecture."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from release.artefacts import OCI, Release, make
from release.errors import ReleaseError
from release.images import IMAGES, image_artefacts, layers_table
from tests.unit.release.layouts import layer, layout

METADATA = "Name: yarl\nVersion: 1.0\n"
PACKAGE = layer({"opt/fleet/lib/python3.11/site-packages/yarl-1.0.dist-info/METADATA": METADATA})
BOTH = ({"architecture": "amd64"}, {"architecture": "arm64"})


@pytest.fixture
def release(tmp_path: Path) -> Release:
    (tmp_path / "release").mkdir()
    return Release(tmp_path / "release", "registry.example.com", "0.1", 0)


def test_given_layouts_are_copied_with_an_sbom_for_each_architecture(release: Release, tmp_path: Path) -> None:
    for image in IMAGES:
        layout(tmp_path / "given" / image.name, [PACKAGE], *BOTH)
    for artefact in image_artefacts(release, tmp_path / "given"):
        make(release, artefact)
    for image in IMAGES:
        given = tmp_path / "given" / image.name
        copied = release.folder / OCI / image.name
        assert {file.relative_to(given) for file in given.rglob("*")} == {
            file.relative_to(copied) for file in copied.rglob("*")
        }
        subjects = set()
        for architecture in ("amd64", "arm64"):
            bom = json.loads((release.folder / f"{image.name}-0.1-{architecture}.cdx.json").read_text())
            assert [each["purl"] for each in bom["components"]] == ["pkg:pypi/yarl@1.0"]
            subjects.add(bom["metadata"]["component"]["purl"])
        assert len(subjects) == 2, "each SBOM names the manifest of its own architecture"


def test_image_is_taken_again_only_if_its_layout_differs(
    release: Release, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    for image in IMAGES:
        layout(tmp_path / "given" / image.name, [PACKAGE], *BOTH)
    (first, *_) = image_artefacts(release, tmp_path / "given")
    make(release, first)
    make(release, image_artefacts(release, tmp_path / "given")[0])
    layout(tmp_path / "other" / IMAGES[0].name, [PACKAGE], BOTH[0])
    for image in IMAGES[1:]:
        layout(tmp_path / "other" / image.name, [PACKAGE], *BOTH)
    make(release, image_artefacts(release, tmp_path / "other")[0])
    words = [line.split() for line in capfd.readouterr().err.splitlines()]
    assert [("there" in line, "done" in line) for line in words] == [(False, True), (True, False), (False, True)]
    assert not (release.folder / f"{IMAGES[0].name}-0.1-arm64.cdx.json").exists()


def test_missing_layout_is_named(release: Release, tmp_path: Path) -> None:
    layout(tmp_path / "given" / IMAGES[0].name, [PACKAGE], *BOTH)
    with pytest.raises(ReleaseError, match=IMAGES[1].name) as refused:
        image_artefacts(release, tmp_path / "given")
    assert refused.value.reason == "NoImage"


def test_table_has_a_line_for_each_layer_and_the_total(tmp_path: Path) -> None:
    lines = layers_table(layout(tmp_path / "x", [PACKAGE, PACKAGE], BOTH[1]))
    assert [line.split()[1:3] for line in lines] == [["arm64", "layer"], ["arm64", "layer"], ["arm64", "total"]]
