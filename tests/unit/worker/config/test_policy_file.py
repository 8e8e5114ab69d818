"""The policies file as a kubelet mounts it, as people write it, and in forms that are refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fleet_consumer.contract.policies import PolicyInvalid
from fleet_consumer.worker.config import mounted_file
from fleet_consumer.worker.config.mounted_file import FileUnreadable, policy_file
from tests.support.clock import StillClock

OLD, NEW = "a1b2c3d4e5", "0123456789"


def document(current: str, delay: str = "5s") -> dict[str, Any]:
    content = {
        "sequence": [delay],
        "classify": [],
        "undecodable": "Fail",
        "maxTotalSeconds": None,
        "headerProfile": "Native",
        "budget": None,
    }
    return {
        "version": 1,
        "policy": "standard",
        "current": current,
        "revisions": {current: content},
        "delays": [delay],
        "partitions": 2,
        "maxMessageBytes": 1_114_124,
    }


class Mounted:
    """A folder as the kubelet fills it: the file is a link into a link, and that one is put in another's place."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.path = folder / "policies.json"
        self.clock = StillClock()
        self.file = policy_file(str(self.path), self.clock)
        self._versions = 0

    def renew(self, content: str) -> None:
        self._versions += 1
        version = self.folder / f"..{self._versions}"
        version.mkdir()
        (version / "policies.json").write_text(content)
        link = self.folder / "..fresh"
        link.symlink_to(version.name)
        link.replace(self.folder / "..data")
        if not self.path.is_symlink():
            self.path.symlink_to("..data/policies.json")

    def reload(self) -> bool:
        self.clock.now += mounted_file.CHECK_INTERVAL_S
        return self.file.reload()

    @property
    def current(self) -> str | None:
        return None if self.file.content is None else self.file.content.current


@pytest.fixture
def mounted(tmp_path: Path) -> Mounted:
    return Mounted(tmp_path)


def test_file_replaced_through_symlinks_is_noticed_and_reported_once(mounted: Mounted) -> None:
    mounted.renew(json.dumps(document(OLD)))
    assert mounted.reload()
    assert mounted.current == OLD
    assert not mounted.reload()
    mounted.renew(json.dumps(document(NEW)))
    assert mounted.reload()
    assert mounted.current == NEW
    mounted.renew(json.dumps(document(NEW)))
    assert not mounted.reload()  # other files, the same policies


def test_a_file_written_in_place_is_noticed_too(mounted: Mounted) -> None:
    mounted.path.write_text(json.dumps(document(OLD)))
    assert mounted.reload()
    mounted.path.write_text(json.dumps(document(NEW, "30s")))
    assert mounted.reload()
    assert mounted.current == NEW


def test_nothing_is_read_twice_within_a_second(mounted: Mounted) -> None:
    mounted.renew(json.dumps(document(OLD)))
    assert mounted.reload()
    mounted.renew(json.dumps(document(NEW)))
    assert not mounted.file.reload()
    assert mounted.reload()


@pytest.mark.parametrize(
    ("content", "kind"),
    [
        ("", FileUnreadable),
        ('{"version": 1, "pol', FileUnreadable),
        ("[" * 100_000, FileUnreadable),
        ("\udcff", FileUnreadable),
        (" " * (mounted_file.BYTES_MAX + 1), FileUnreadable),
        ("[]", PolicyInvalid),
        (json.dumps(document(OLD) | {"current": NEW}), PolicyInvalid),
        (json.dumps(document(OLD) | {"surprise": 1}), PolicyInvalid),
    ],
    ids=["empty", "torn", "deep", "binary", "huge", "list", "names-no-revision", "unknown-field"],
)
def test_invalid_policies_are_reported_and_the_last_good_ones_stay(
    mounted: Mounted, content: str, kind: type[Exception]
) -> None:
    mounted.renew(json.dumps(document(OLD)))
    assert mounted.reload()
    mounted.path.unlink()
    mounted.path.write_bytes(content.encode("utf-8", "surrogateescape"))
    assert not mounted.reload()
    assert isinstance(mounted.file.last_error, kind)
    assert mounted.file.last_error.reason == ("PolicyInvalid" if kind is PolicyInvalid else "PolicyFileUnreadable")
    assert mounted.current == OLD
    mounted.path.write_text(json.dumps(document(OLD)))
    assert not mounted.reload()  # corrected, and nothing new
    assert mounted.file.last_error is None


def test_missing_file_is_an_error_until_it_exists(mounted: Mounted) -> None:
    assert not mounted.reload()
    assert isinstance(mounted.file.last_error, FileUnreadable)
    assert str(mounted.path) in str(mounted.file.last_error)
    mounted.renew(json.dumps(document(OLD)))
    assert mounted.reload()
    assert mounted.file.last_error is None
