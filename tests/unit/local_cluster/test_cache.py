"""The cache of what takes long to make: an interrupted entry is made again, and one is made once for all."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from e2e.local_cluster.cache import cache_entry


def test_cache_entry_left_half_made_is_made_again(tmp_path: Path) -> None:
    entry = tmp_path / "entry"

    def die_midway(into: Path) -> None:
        (into / "half").touch()
        raise KeyboardInterrupt

    def make(into: Path) -> None:
        (into / "whole").touch()

    with pytest.raises(KeyboardInterrupt):
        cache_entry(entry, die_midway, purpose="dying")
    (tmp_path / ".entry.partial-killed").mkdir()

    assert cache_entry(entry, make, purpose="making") == entry

    assert [each.name for each in entry.iterdir()] == ["whole"]
    assert list(tmp_path.glob(".entry.partial-*")) == []


def test_cache_entry_wanted_by_several_at_once_is_made_once(tmp_path: Path) -> None:
    entry, made = tmp_path / "entry", []

    def make(into: Path) -> None:
        made.append(into)
        (into / "file").touch()

    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda _: cache_entry(entry, make, purpose="making"), range(4)))

    assert found == [entry] * 4
    assert len(made) == 1
