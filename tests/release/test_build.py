"""The files of a release: complete, of one version, and not made again without a reason."""

from __future__ import annotations

import json
import subprocess
import sys
import tarfile
import venv
from pathlib import Path
from typing import Any

import pytest
import yaml

from e2e.local_cluster.gomodules import HELM, ensure_programs
from release.artefacts import SUMS, Release, file_artefacts, make
from release.cli import main
from release.images import IMAGES
from release.version import ROOT
from tests.release.conftest import build


def operator(chart: Path, *options: str) -> dict[str, Any]:
    """The operator's container, of a chart's package."""
    words = [str(ensure_programs(HELM) / "helm"), "template", "fleet", str(chart), *options]
    printed = subprocess.run(words, check=True, capture_output=True, text=True).stdout
    objects = [each for each in yaml.safe_load_all(printed) if each]
    (deployment,) = [each for each in objects if each["kind"] == "Deployment"]
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    return dict(container)


def test_chart_names_the_registry_and_the_version_for_all_three_images(built: Release) -> None:
    """Without any value of the user, from the package alone."""
    container = operator(built.folder / f"consumer-fleet-{built.version}.tgz")
    assert container["image"] == f"registry.example.com/fleet/consumer-fleet-operator:{built.version}"
    for name in ("consumer", "spark"):
        assert f"registry.example.com/fleet/consumer-fleet-{name}:{built.version}" in json.dumps(container)


def test_chart_of_a_build_with_images_names_their_digests(tmp_path: Path) -> None:
    """So what a verified chart installs is what was verified. Another digest gives another package."""
    release = Release.of_checkout(tmp_path, "registry.example.com/fleet")
    for digits in ("0", "1"):
        digests = {image.name: f"sha256:{digits * 63}{number}" for number, image in enumerate(IMAGES)}
        (chart,) = [each for each in file_artefacts(release, digests) if each.name == "chart"]
        make(release, chart)
        package = tmp_path / f"consumer-fleet-{release.version}.tgz"
        container = operator(package)
        wanted = {name: f"registry.example.com/fleet/{name}@{digest}" for name, digest in digests.items()}
        assert container["image"] == wanted["consumer-fleet-operator"]
        for reference in wanted.values():
            assert reference in json.dumps(container)
        other = operator(package, "--set", "operator.image.digest=sha256:" + "a" * 64)
        assert other["image"] == "registry.example.com/fleet/consumer-fleet-operator@sha256:" + "a" * 64
        by_tag = operator(package, "--set", "operator.image.digest=")
        assert by_tag["image"] == f"registry.example.com/fleet/consumer-fleet-operator:{release.version}"


def test_crds_are_in_one_file_and_those_of_the_chart(built: Release) -> None:
    text = (built.folder / f"consumer-fleet-crds-{built.version}.yaml").read_text()
    wanted = [yaml.safe_load(file.read_text()) for file in sorted((ROOT / "crds").glob("*.yaml"))]
    assert list(yaml.safe_load_all(text)) == wanted
    with tarfile.open(built.folder / f"consumer-fleet-{built.version}.tgz") as packed:
        definitions = sorted(name for name in packed.getnames() if "/definitions/" in name)
    assert [Path(name).name for name in definitions] == [file.name for file in sorted((ROOT / "crds").glob("*.yaml"))]


def test_wheel_has_both_packages_and_nothing_of_the_tests(built: Release, tmp_path: Path) -> None:
    (wheel,) = built.folder.glob("*.whl")
    environment = tmp_path / "environment"
    venv.create(environment, with_pip=False)
    target = f"--prefix={environment}"
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--ignore-installed", target]
    subprocess.run([*pip, str(wheel)], check=True)
    # A path that starts with the site packages, and nothing of this clone.
    code = (
        "import fleet_operator, fleet_consumer, importlib.metadata, importlib.util as u; "
        "print(importlib.metadata.version('consumer-fleet'), u.find_spec('tests'), u.find_spec('release'))"
    )
    words = [str(environment / "bin" / "python"), "-I", "-c", code]
    done = subprocess.run(words, check=True, capture_output=True, text=True, cwd=tmp_path)
    assert done.stdout.split() == [built.version, "None", "None"]


def test_checksums_are_those_that_sha256sum_verifies(built: Release) -> None:
    subprocess.run(["sha256sum", "--check", "--strict", "--quiet", SUMS], cwd=built.folder, check=True)
    listed = {line.split()[1] for line in (built.folder / SUMS).read_text().splitlines()}
    present = {file.name for file in built.folder.iterdir()} - {SUMS, "build.json"}
    assert listed == present
    assert len(listed) >= 4


def test_another_build_of_the_same_commit_gives_the_same_wheel_chart_and_crds(built: Release, tmp_path: Path) -> None:
    again = build(tmp_path / "again", built.registry)
    for name in (file.name for file in built.folder.iterdir() if file.suffix in (".whl", ".tgz", ".yaml")):
        assert (again.folder / name).read_bytes() == (built.folder / name).read_bytes(), name


def test_only_what_is_missing_or_damaged_is_made_again(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    release = Release.of_checkout(tmp_path, "registry.example.com")
    crds, chart = [each for each in file_artefacts(release, {}) if each.name in ("crds", "chart")]
    for artefact in (crds, chart):
        make(release, artefact)
    file = tmp_path / f"consumer-fleet-crds-{release.version}.yaml"
    sound = file.read_bytes()
    file.write_bytes(sound[:-1])
    capfd.readouterr()
    for artefact in (crds, chart):
        make(release, artefact)
    seen = [line.split()[-2:] for line in capfd.readouterr().err.splitlines()]
    assert seen == [["done", "crds"], ["there", "chart"]]
    assert file.read_bytes() == sound


def test_registry_must_be_a_host_with_a_path(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="NotARegistry"):
        main(["build", "--into", str(tmp_path), "--registry", "oci://registry.example.com"])
