"""Publication to a real registry with TLS and a login: pushed once, signed, verified; refused if anything differs."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e.local_cluster.gomodules import HELM, ensure_programs
from release.artefacts import OCI, Release
from release.cli import main
from release.errors import ReleaseError
from release.images import IMAGES
from release.programs import COSIGN, ORAS
from release.publication import CHART, FILES, pack, publish, verify
from release.registry import Registry, push_to_layout
from release.version import ROOT
from tests.release.conftest import stand_in_images
from tests.release.registry import KEY_PASSWORD, TestRegistry, new_key, registry


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestRegistry]:
    with registry(tmp_path_factory.mktemp("registry")) as made:
        yield made


@pytest.fixture(autouse=True)
def logged_in(served: TestRegistry, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {**served.environment(), "COSIGN_PASSWORD": KEY_PASSWORD}.items():
        monkeypatch.setenv(name, value)


@pytest.fixture(scope="module")
def key(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A key as `cosign generate-key-pair` writes it."""
    return new_key(tmp_path_factory.mktemp("key"))


@pytest.fixture(scope="module")
def unpublished(built: Release, served: TestRegistry, tmp_path_factory: pytest.TempPathFactory) -> Release:
    """The files of the build, packed for this registry; a small artefact takes the place of the images."""
    folder = tmp_path_factory.mktemp("packed") / "release"
    shutil.copytree(built.folder, folder)
    release = Release(folder, f"{served.host}/fleet", built.version, built.commit_time)
    pack(release, stand_in_images(release))
    return release


@pytest.fixture
def published(unpublished: Release, key: Path) -> Release:
    publish(unpublished.folder, str(key), untagged=True)
    return unpublished


def public_key(release: Release) -> str:
    return str(release.folder / "cosign.pub")


def oras(*words: str) -> str:
    done = subprocess.run([ensure_programs(ORAS) / "oras", *words], check=True, capture_output=True, text=True)
    return done.stdout


def test_everything_is_pulled_by_digest_and_verified_with_the_public_key(published: Release, tmp_path: Path) -> None:
    digests = verify(Registry(published.registry), published.version, public_key(published))
    assert set(digests) == {CHART, FILES, *(image.name for image in IMAGES)}
    oras("pull", "--output", str(tmp_path), f"{published.registry}/{FILES}@{digests[FILES]}")
    names = {file.name for file in tmp_path.iterdir()}
    assert {file.name for file in published.folder.iterdir()} - names == {
        "build.json",
        OCI,
        "cosign.pub",
        "SHA256SUMS.sigstore.json",
    }
    for name in names:
        assert (tmp_path / name).read_bytes() == (published.folder / name).read_bytes(), name


def test_commands_of_the_page_verify_a_release_and_refuse_an_older_one(published: Release, tmp_path: Path) -> None:
    page = (ROOT / "docs/release.md").read_text()
    (block,) = [each for each in re.findall(r"(?ms)^```\n(.*?)^```$", page) if "oras resolve" in each]
    path = os.pathsep.join([*(str(ensure_programs(each)) for each in (ORAS, COSIGN)), os.environ["PATH"]])
    oras("tag", f"{published.registry}/{FILES}:{published.version}", "0.1.1")
    for version, wanted in ((published.version, 0), ("0.1.1", 1)):
        folder = tmp_path / version
        folder.mkdir()
        shutil.copy(public_key(published), folder)
        text = block.replace("registry.example.com/fleet", published.registry).replace("X.Y.Z", version)
        done = subprocess.run(
            ["bash", "-euc", text],
            cwd=folder,
            env={**os.environ, "PATH": path},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == wanted, done.stderr
        assert f"consumer-fleet-{published.version}.tgz: OK" in done.stdout


def test_helm_pulls_the_chart_that_was_built(published: Release, tmp_path: Path, served: TestRegistry) -> None:
    config = Path(os.environ["DOCKER_CONFIG"], "config.json")
    words = [
        "pull",
        f"oci://{published.registry}/{CHART}",
        "--version",
        published.version,
        "--destination",
        str(tmp_path),
    ]
    words += ["--ca-file", str(served.authority), "--registry-config", str(config)]
    subprocess.run([ensure_programs(HELM) / "helm", *words], check=True, capture_output=True)
    (chart,) = tmp_path.iterdir()
    assert chart.read_bytes() == (published.folder / f"{CHART}-{published.version}.tgz").read_bytes()


def test_repeated_publication_changes_nothing_in_the_registry(
    published: Release, key: Path, served: TestRegistry
) -> None:
    before = {file: file.stat().st_mtime_ns for file in served.folder.joinpath("storage").rglob("*") if file.is_file()}
    assert before
    publish(published.folder, str(key), untagged=True)
    after = {file: file.stat().st_mtime_ns for file in served.folder.joinpath("storage").rglob("*") if file.is_file()}
    assert after == before


def test_other_content_under_a_published_version_is_refused(published: Release, key: Path, tmp_path: Path) -> None:
    other = Release(tmp_path / "other", published.registry, published.version, published.commit_time)
    shutil.copytree(published.folder, other.folder)
    (other.folder / "build.json").unlink()
    (other.folder / "addition.json").write_text("{}")
    pack(other, [image.name for image in IMAGES])
    with pytest.raises(ReleaseError) as refused:
        publish(other.folder, str(key), untagged=True)
    assert refused.value.reason == "AlreadyPublished"
    assert published.version in refused.value.message


def test_tag_that_somebody_moved_is_refused(published: Release) -> None:
    """As somebody with the right to push could do: once with unsigned content, once with another signed artefact."""
    where = f"{published.registry}/{CHART}"
    genuine = oras("resolve", f"{where}:{published.version}").strip()
    try:
        oras("push", f"{where}:{published.version}", "--artifact-type", "application/x-replaced")
        with pytest.raises(ReleaseError) as replaced:
            verify(Registry(published.registry), published.version, public_key(published))
        assert (replaced.value.reason, "was replaced" in replaced.value.message) == ("Damaged", True)
    finally:
        oras("tag", f"{where}@{genuine}", published.version)
    verify(Registry(published.registry), published.version, public_key(published))
    files = f"{published.registry}/{FILES}"
    oras("push", f"{files}:9.9.9", "--artifact-type", "application/x-unsigned")
    with pytest.raises(ReleaseError) as unsigned:
        verify(Registry(published.registry), "9.9.9", public_key(published))
    assert unsigned.value.reason == "NotSigned"


def test_tags_that_were_pointed_at_an_older_release_are_refused(published: Release, key: Path, tmp_path: Path) -> None:
    """Everything is signed, but not as the version that was asked for."""
    older = Release(tmp_path / "older", published.registry, "0.0.9", published.commit_time)
    shutil.copytree(published.folder, older.folder)
    shutil.rmtree(older.folder / OCI)
    older.folder.joinpath(f"{CHART}-{published.version}.tgz").rename(older.folder / f"{CHART}-0.0.9.tgz")
    pack(older, stand_in_images(older))
    publish(older.folder, str(key), untagged=True)
    for name in verify(Registry(older.registry), "0.0.9", public_key(older)):
        oras("tag", f"{older.registry}/{name}:0.0.9", "0.1.0")
    with pytest.raises(ReleaseError) as refused:
        verify(Registry(older.registry), "0.1.0", public_key(older))
    assert refused.value.reason == "Damaged"
    assert "0.0.9" in refused.value.message
    assert "0.1.0" in refused.value.message


def test_release_of_another_registry_is_refused(published: Release, served: TestRegistry) -> None:
    """Copied with its signatures: its chart names images of the other registry."""
    other = f"{served.host}/elsewhere"
    for name in verify(Registry(published.registry), published.version, public_key(published)):
        oras("cp", "--recursive", f"{published.registry}/{name}:{published.version}", f"{other}/{name}")
        digest = oras("resolve", f"{published.registry}/{name}:{published.version}").strip()
        oras("tag", f"{other}/{name}@{digest}", published.version)
    with pytest.raises(ReleaseError) as refused:
        verify(Registry(other), published.version, public_key(published))
    assert refused.value.reason == "Damaged"
    assert other in refused.value.message
    assert published.registry in refused.value.message


def test_signed_release_without_images_or_of_something_else_is_refused(
    published: Release, key: Path, served: TestRegistry, tmp_path: Path
) -> None:
    partial = Release(tmp_path / "partial", f"{served.host}/partial", published.version, published.commit_time)
    shutil.copytree(published.folder, partial.folder)
    pack(partial, [])
    where = Registry(partial.registry)
    where.sign(FILES, where.push(partial.folder / OCI / FILES, FILES, partial.version), str(key), public_key(partial))
    with pytest.raises(ReleaseError) as incomplete:
        verify(where, partial.version, public_key(partial))
    assert incomplete.value.reason == "Damaged"
    assert all(image.name in incomplete.value.message for image in IMAGES)
    oras("push", f"{where.name}/{FILES}:9.9.9", "--artifact-type", "application/x-signed")
    where.sign(FILES, str(where.digest(FILES, "9.9.9")), str(key), public_key(partial))
    with pytest.raises(ReleaseError) as foreign:
        verify(where, "9.9.9", public_key(partial))
    assert (foreign.value.reason, "SHA256SUMS" in foreign.value.message) == ("Damaged", True)


def test_content_that_was_changed_in_the_registry_is_refused(published: Release, served: TestRegistry) -> None:
    """On the registry's disk, under the genuine digest."""
    manifest = json.loads(oras("manifest", "fetch", f"{published.registry}/{FILES}:{published.version}"))
    (digest,) = [
        each["digest"]
        for each in manifest["layers"]
        if each["annotations"]["org.opencontainers.image.title"].endswith(".whl")
    ]
    value = digest.removeprefix("sha256:")
    blob = served.blobs / value[:2] / value / "data"
    sound = blob.read_bytes()
    blob.write_bytes(sound[:-1] + bytes([sound[-1] ^ 1]))
    try:
        with pytest.raises(ReleaseError) as refused:
            verify(Registry(published.registry), published.version, public_key(published))
        assert "digest" in refused.value.message
    finally:
        blob.write_bytes(sound)
    verify(Registry(published.registry), published.version, public_key(published))


def test_signature_of_another_key_is_refused(published: Release, tmp_path: Path) -> None:
    new_key(tmp_path)
    with pytest.raises(ReleaseError) as refused:
        verify(Registry(published.registry), published.version, str(tmp_path / "cosign.pub"))
    assert refused.value.reason == "NotSigned"


def test_changed_file_is_not_published(unpublished: Release, key: Path, tmp_path: Path) -> None:
    shutil.copytree(unpublished.folder, tmp_path / "release")
    crds = tmp_path / "release" / f"consumer-fleet-crds-{unpublished.version}.yaml"
    crds.write_text(crds.read_text() + "#\n")
    with pytest.raises(ReleaseError) as refused:
        publish(tmp_path / "release", str(key), untagged=True)
    assert (refused.value.reason, crds.name in refused.value.message) == ("Damaged", True)


@pytest.mark.parametrize("name", [CHART, FILES, IMAGES[0].name])
def test_layout_that_is_not_of_this_build_is_refused_before_the_first_push(
    unpublished: Release, key: Path, tmp_path: Path, name: str
) -> None:
    """A push would end as Unreachable. First the layout of another build, then a changed byte."""
    release = Release(tmp_path / "release", "localhost:1", unpublished.version, unpublished.commit_time)
    shutil.copytree(unpublished.folder, release.folder)
    pack(release, [image.name for image in IMAGES])
    layout = release.folder / OCI / name
    layout.rename(tmp_path / "genuine")
    push_to_layout(layout, release.version, {"SHA256SUMS": "text/plain"}, ["--artifact-type", "x/y"], release.folder)
    with pytest.raises(ReleaseError) as other:
        publish(release.folder, str(key), untagged=True)
    assert (other.value.reason, str(layout) in other.value.message) == ("Damaged", True)
    shutil.rmtree(layout)
    (tmp_path / "genuine").rename(layout)
    blob = max((layout / "blobs" / "sha256").iterdir(), key=lambda file: file.stat().st_size)
    sound = blob.read_bytes()
    blob.write_bytes(sound[:-1] + bytes([sound[-1] ^ 1]))
    with pytest.raises(ReleaseError) as changed:
        publish(release.folder, str(key), untagged=True)
    assert (changed.value.reason, str(blob) in changed.value.message) == ("Damaged", True)
    blob.write_bytes(sound)
    with pytest.raises(ReleaseError) as sound_one:
        publish(release.folder, str(key), untagged=True)
    assert sound_one.value.reason == "Unreachable"


def test_checksums_are_signed_for_files_from_elsewhere(published: Release, tmp_path: Path) -> None:
    sums, bundle = published.folder / "SHA256SUMS", published.folder / "SHA256SUMS.sigstore.json"
    words = ["verify-blob", "--insecure-ignore-tlog=true", "--key", public_key(published), "--bundle", str(bundle)]
    program = ensure_programs(COSIGN) / "cosign"
    assert subprocess.run([program, *words, sums], capture_output=True, check=False).returncode == 0
    changed = tmp_path / "SHA256SUMS"
    changed.write_text(sums.read_text().replace("a", "b"))
    assert subprocess.run([program, *words, changed], capture_output=True, check=False).returncode != 0


@pytest.mark.parametrize(
    ("setting", "value", "reason"),
    [
        ("DOCKER_CONFIG", "wrong", "LoginFailed"),
        ("SSL_CERT_FILE", os.devnull, "Untrusted"),
        ("COSIGN_PASSWORD", "no", "SigningFailed"),
    ],
)
def test_wrong_login_authority_or_password_is_named(
    unpublished: Release,
    key: Path,
    served: TestRegistry,
    monkeypatch: pytest.MonkeyPatch,
    setting: str,
    value: str,
    reason: str,
) -> None:
    monkeypatch.setenv(setting, served.environment(value)[setting] if setting == "DOCKER_CONFIG" else value)
    with pytest.raises(SystemExit, match=reason):
        main(["publish", str(unpublished.folder), "--key", str(key), "--untagged"])


def test_missing_registry_is_named(unpublished: Release, key: Path) -> None:
    with pytest.raises(SystemExit, match="Unreachable"):
        main(["verify", unpublished.version, "--registry", "localhost:1", "--key", str(key)])
