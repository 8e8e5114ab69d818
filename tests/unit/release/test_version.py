"""The version is stated in pyproject.toml; every other place repeats it, and one command changes all."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from release.cli import main
from release.errors import ReleaseError
from release.version import check_tagged, places, project_version, set_version, tag

OLD, NEW = "0.2.0", "0.3.0"  # not written out below: this file is one of those that `tag` changes
FILES = {
    "pyproject.toml": '[project]\nname = "x"\nversion = "0.2.0"\n',
    "charts/consumer-fleet/Chart.yaml": 'version: 0.2.0\nappVersion: "0.2.0"\n',
    "CHANGELOG.md": f"## Next: 0.3.0\n\n## 0.2.0\n\n`consumer-fleet-consumer:{OLD}` was slow.\n",
    "docs/page.md": f"FROM registry.example.com/consumer-fleet-consumer:{OLD}\nkafka 0.2.0\n",
    "docs/install.md": f"helm install x oci://registry.example.com/consumer-fleet --version {OLD} --wait\n",
}


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    git(tmp_path, "init", "--quiet")
    git(tmp_path, "config", "user.email", "tests@example.com")
    git(tmp_path, "config", "user.name", "tests")
    commit(tmp_path)
    return tmp_path


def git(folder: Path, *words: str) -> str:
    return subprocess.run(["git", *words], cwd=folder, check=True, capture_output=True, text=True).stdout


def commit(folder: Path) -> None:
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "--message", "change")


def test_every_place_states_the_version_of_the_project() -> None:
    found = places()
    assert {place.version for place in found} == {project_version()}
    files = {place.file for place in found}
    assert {"pyproject.toml", "charts/consumer-fleet/Chart.yaml", "docs/install.md", "docs/own-image.md"} <= files


def test_new_version_is_written_to_every_place_and_to_nothing_else(clone: Path) -> None:
    changed = set_version("0.3.0", clone)
    assert sorted(changed) == sorted(FILES)
    assert {place.version for place in places(clone)} == {"0.3.0"}
    assert (clone / "docs/page.md").read_text().endswith(f"consumer-fleet-consumer:{NEW}\nkafka 0.2.0\n")
    changelog = (clone / "CHANGELOG.md").read_text()
    assert changelog == f"## 0.3.0\n\n## 0.2.0\n\n`consumer-fleet-consumer:{OLD}` was slow.\n"
    assert set_version("0.3.0", clone) == []


def test_tag_is_created_once_the_version_is_committed_and_never_moves(clone: Path) -> None:
    assert "written to 5 files" in tag("0.3.0", clone)
    with pytest.raises(ReleaseError) as refused:
        tag("0.3.0", clone)
    assert refused.value.reason == "NotCommitted"
    assert git(clone, "tag") == ""
    commit(clone)
    assert "tag v0.3.0 created" in tag("0.3.0", clone)
    assert "already" in tag("0.3.0", clone)
    assert git(clone, "tag") == "v0.3.0\n"
    (clone / "more").write_text("more")
    commit(clone)
    with pytest.raises(ReleaseError) as moved:
        tag("0.3.0", clone)
    assert moved.value.reason == "TagElsewhere"


def test_only_a_clean_build_of_the_tags_commit_is_a_release(clone: Path) -> None:
    def refused(*, dirty: bool) -> str:
        with pytest.raises(ReleaseError) as error:
            check_tagged("0.3.0", built, dirty=dirty, root=clone)
        assert error.value.reason == "NotTagged"
        return error.value.message

    built = git(clone, "rev-parse", "HEAD").strip()
    assert "v0.3.0 is missing" in refused(dirty=False)
    git(clone, "tag", "--annotate", "--message", "x", "v0.3.0")
    check_tagged("0.3.0", built, dirty=False, root=clone)
    assert "uncommitted changes" in refused(dirty=True)
    git(clone, "tag", "--force", "v0.3.0")
    check_tagged("0.3.0", built, dirty=False, root=clone)
    tagged, built = built, "f" * 40
    assert f"v0.3.0 is at {tagged[:12]}" in refused(dirty=False)


@pytest.mark.parametrize(
    ("version", "reason"), [("0.3", "NotAVersion"), ("v0.3.0", "NotAVersion"), ("0.4.0", "NoChangelog")]
)
def test_version_without_three_numbers_or_a_changelog_changes_nothing(clone: Path, version: str, reason: str) -> None:
    with pytest.raises(ReleaseError) as refused:
        tag(version, clone)
    assert refused.value.reason == reason
    assert git(clone, "status", "--porcelain") == ""


def test_place_that_lost_its_version_is_reported(clone: Path) -> None:
    (clone / "charts/consumer-fleet/Chart.yaml").write_text("version: 0.2.0\n")
    with pytest.raises(ReleaseError) as refused:
        places(clone)
    assert (refused.value.reason, "Chart.yaml" in refused.value.message) == ("VersionMissing", True)


def test_command_prints_the_places(capsys: pytest.CaptureFixture[str]) -> None:
    main(["version"])
    assert f"{project_version()}  charts/consumer-fleet/Chart.yaml:5" in capsys.readouterr().out
