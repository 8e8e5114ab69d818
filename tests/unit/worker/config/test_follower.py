"""A running session follows its policies file: topics come and go without a restart, a new size limit takes one."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fleet_consumer.clock import Clock, SystemClock
from fleet_consumer.contract.pod import EXIT_SURROUNDINGS
from fleet_consumer.contract.policies import PolicyInvalid
from fleet_consumer.contract.worker_config import parse_config
from fleet_consumer.net import ConnectionSettings
from fleet_consumer.worker.commands.check import examine
from fleet_consumer.worker.config.mounted_file import FileUnreadable, Follower, policy_file
from fleet_consumer.worker.config.role import Role
from fleet_consumer.worker.config.settings import RETRY_PREFETCH, PodIdentity, consumer_settings
from tests.support.clock import StillClock
from tests.unit.retry.policies import document
from tests.unit.worker.documents import changed, worker_document


class Loop:
    """Records what it is to consume."""

    def __init__(self, topics: tuple[str, ...]) -> None:
        self.topics = topics

    def subscribe(self, topics: tuple[str, ...]) -> None:
        self.topics = topics


class Mount:
    """A policies file as the kubelet renews it, and who follows it."""

    def __init__(self, folder: Path, role: Role) -> None:
        self.path = folder / "policies.json"
        self.clock = StillClock()
        self.file = policy_file(str(self.path), self.clock)
        self.write(document("5s"))
        self.follower = Follower(self.file, role, "g")
        self.loop = Loop(self.follower.topics())

    def write(self, content: Any) -> None:
        fresh = self.path.with_suffix(".new")
        fresh.write_text(json.dumps(content))
        fresh.replace(self.path)

    def follow(self) -> bool:
        self.clock.now += 2
        return self.follower.follow(self.loop.topics, self.loop.subscribe)


def test_retry_worker_subscribes_again_when_delays_change(tmp_path: Path) -> None:
    mount = Mount(tmp_path, Role.RETRY)
    assert mount.loop.topics == ("_fleet.g.retry.5s", "_fleet.g.redrive")
    mount.write(document("5s", "1m"))
    assert mount.follow()
    assert set(mount.loop.topics) == {"_fleet.g.retry.5s", "_fleet.g.retry.1m", "_fleet.g.redrive"}


def test_main_worker_keeps_its_topics(tmp_path: Path) -> None:
    mount = Mount(tmp_path, Role.MAIN)
    mount.loop.topics = ("orders",)
    mount.write(document("1m"))
    assert mount.follow()
    assert (mount.loop.topics, mount.follower.policies.newest.sequence) == (("orders",), (60,))


def test_file_that_turns_bad_or_goes_away_changes_nothing(tmp_path: Path) -> None:
    mount = Mount(tmp_path, Role.RETRY)
    mount.write({"version": 2})
    assert mount.follow()
    mount.path.unlink()
    assert mount.follow()
    assert mount.loop.topics == ("_fleet.g.retry.5s", "_fleet.g.redrive")


def test_new_size_limit_needs_a_new_session(tmp_path: Path) -> None:
    mount = Mount(tmp_path, Role.MAIN)
    mount.write(document("5s") | {"maxMessageBytes": 2_000_000})
    assert not mount.follow()


def test_session_does_not_begin_without_policies(tmp_path: Path) -> None:
    clock: Clock = StillClock()
    with pytest.raises(FileUnreadable):
        Follower(policy_file(str(tmp_path / "none.json"), clock), Role.MAIN, "g")
    (tmp_path / "bad.json").write_text("{}")
    with pytest.raises(PolicyInvalid):
        Follower(policy_file(str(tmp_path / "bad.json"), clock), Role.RETRY, "g")


@pytest.fixture
def handler_modules() -> Iterator[None]:
    """A handler's module is left to no other test."""
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        del sys.modules[name]


@pytest.mark.usefixtures("handler_modules")
def test_check_reports_invalid_policies(tmp_path: Path) -> None:
    (tmp_path / "handler.py").write_text("def handle(record): pass\n")
    source = {"callable": "handler:handle", "path": str(tmp_path)}
    settings = worker_document(retry={"policyFile": str(tmp_path / "policies.json")})
    settings = changed(changed(settings, "handler.python", source), "handler.outputs", [])
    result = examine(parse_config(settings), SystemClock())
    assert (result.reason, result.exit_code) == ("PolicyFileUnreadable", EXIT_SURROUNDINGS)
    (tmp_path / "policies.json").write_text("{}")
    assert examine(parse_config(settings), SystemClock()).reason == "PolicyInvalid"


def test_retry_role_is_a_member_of_the_groups_own_retry_group_and_reads_little_ahead() -> None:
    settings_of_main = changed(worker_document(), "consumer.autoOffsetReset", "Latest")
    settings_of_main = changed(settings_of_main, "consumer.isolationLevel", "ReadCommitted")
    properties = {"queued.min.messages": "1", "check.crcs": "true"}
    config = parse_config(changed(settings_of_main, "consumer.properties", properties))
    connection = ConnectionSettings(bootstrap_servers=("b:1",), client_id="c")
    identity = PodIdentity("flights-0", "default.flights.0d9c2f3e-0")
    settings = consumer_settings(config, connection, identity, Role.RETRY)
    assert (settings.group_id, settings.group_instance_id) == ("flights.retry", identity.instance_id)
    assert (settings.auto_offset_reset, settings.isolation_level) == ("earliest", "read_uncommitted")
    assert settings.max_poll_records == 100
    assert settings.properties == {**RETRY_PREFETCH, "check.crcs": "true"}
