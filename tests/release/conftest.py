"""Shared parts of the tests of releases: one build, whose programs are compiled before the first test."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from e2e.local_cluster.gomodules import HELM, ensure_programs
from release.artefacts import OCI, SUMS, Release, file_artefacts, make, write_sums
from release.images import IMAGES
from release.programs import COSIGN, ORAS, REGISTRY
from release.registry import push_to_layout
from tests.support.programs import build_before

FOLDER = Path(__file__).parent
PROGRAMS = tuple(partial(ensure_programs, each) for each in (HELM, ORAS, REGISTRY, COSIGN))


def pytest_collection_finish(session: pytest.Session) -> None:
    build_before(session, FOLDER, PROGRAMS)


def build(folder: Path, registry: str) -> Release:
    """All artefacts but the images."""
    release = Release.of_checkout(folder, registry)
    for artefact in file_artefacts(release, {}):
        make(release, artefact)
    write_sums(release)
    return release


def stand_in_images(release: Release) -> list[str]:
    """Small artefacts in the place of the images; returns their names."""
    for image in IMAGES:
        options = ["--artifact-type", f"application/x-{image.name}"]
        push_to_layout(
            release.folder / OCI / image.name, release.version, {SUMS: "text/plain"}, options, release.folder
        )
    return [image.name for image in IMAGES]


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Release:
    """A build that no test changes."""
    return build(tmp_path_factory.mktemp("built"), "registry.example.com/fleet")
