"""Retries and a redrive on brokers with TLS, passwords and ACLs: the table of docs/retries.md is enough.

The table is read from the page and granted row by row, so a right missing there fails here. Every row is also left out
once: the refused operation is then reported with its topic or group, nothing is lost, and work resumes as soon as the
right is granted.
"""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

from fleet_consumer.contract import naming
from fleet_consumer.contract.brokers import parse_brokers
from fleet_consumer.contract.managed_topics import WantedTopic
from fleet_consumer.contract.pod import EXIT_SURROUNDINGS
from fleet_consumer.contract.section import Section
from fleet_consumer.net import NetworkClient
from fleet_consumer.worker.config.settings import connection_settings
from fleet_operator.observe.kafka_admin import KafkaAdmin, Refusal
from fleet_operator.observe.subscriptions import GroupSubscription, retry_subscription
from fleet_operator.planning.retry.topics import TopicsPlan
from tests.broker.members import unique
from tests.broker.retry_fleet import PAUSING_BUDGET, RetryFleet
from tests.broker.workers import COMMAND, QUIET, Kafka, Worker
from tests.observe.polls import Watcher, commit
from tests.retries.redrives import Ended, redrive_settings, start_redrive
from tests.support.kafka import KafkaBroker
from tests.support.waiting import eventually

PAGE = Path(__file__).parents[2] / "docs" / "retries.md"
USER, PASSWORD = "fleet", "fleet-secret"
PATIENCE_S = 240.0
PARTITIONS = 2

HANDLER = '''
"""Refuses what asks for it until it is corrected."""
import json
from pathlib import Path

from fleet_consumer import Produce

CORRECTED = Path(__file__).with_name("corrected")

def handle(record):
    if record.value["do"] == "fail" and not CORRECTED.exists():
        raise ValueError("asked to fail")
    return Produce(OUTPUT, json.dumps(record.value), key=f"{record.partition}-{record.offset}")
'''


@dataclass(frozen=True, slots=True)
class Right:
    """One row of the page's table, for its group `orders`."""

    whose: str
    operation: str
    kind: str
    names: tuple[str, ...]
    """Of one or more resources of the kind; those that end in `*` are prefixes."""

    def __str__(self) -> str:
        return f"{self.operation}-{self.kind}-{self.names[0]}"

    def bindings(self, group: str) -> list[AclBinding]:
        """The same right of another group's user."""
        # The page writes operations as Kafka does: DescribeConfigs is DESCRIBE_CONFIGS here.
        operation = AclOperation[re.sub(r"(?<=[a-z])(?=[A-Z])", "_", self.operation).upper()]
        made = []
        for name in self.names:
            pattern = ResourcePatternType.PREFIXED if name.endswith("*") else ResourcePatternType.LITERAL
            resource = (ResourceType[self.kind.upper()], name.rstrip("*").replace("orders", group), pattern)
            made.append(AclBinding(*resource, f"User:{USER}", "*", operation, AclPermissionType.ALLOW))
        return made


def rights(whose: str) -> list[Right]:
    """The rows of the page's table for workers or for the operator."""
    table = re.search(r"^\| Who \|.*\n\|[-|]+\|\n((?:\|.*\n)+)", PAGE.read_text(), re.MULTILINE)
    assert table is not None
    found = []
    for line in table[1].splitlines():
        who, operation, on, _ = (cell.strip() for cell in line.strip("|").split(" | "))
        names = tuple(re.findall(r"`([^`]+)`", on))
        assert names, line
        if who == whose:
            found.append(Right(who, operation.strip("`"), on.split()[0].rstrip("s"), names))
    return found


@pytest.fixture(scope="module")
def secured() -> Iterator[KafkaBroker]:
    """A broker that refuses everything without a right, except for the tests' own user."""
    acls = {
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS",
        "group.min.session.timeout.ms": "1000",
    }
    with KafkaBroker(tls=True, sasl_users={USER: PASSWORD}, properties=acls) as running:
        yield running


class Secured:
    """A fleet whose processes connect with TLS and SCRAM."""

    def __init__(self, broker: KafkaBroker, folder: Path) -> None:
        self.kafka = Kafka(broker.bootstrap)
        self.folder = folder
        self.group = unique("rights")
        # With a budget that pauses, retry workers ask for the main workers' commits as well.
        self.fleet = RetryFleet(
            self.kafka,
            folder,
            self.group,
            sequence=("1s", "1s"),
            partitions=PARTITIONS,
            budget=dict(PAUSING_BUDGET),
        )
        (folder / "handler.py").write_text(HANDLER.replace("OUTPUT", repr(self.fleet.output)))
        login = folder / "login"
        login.mkdir()
        (login / "username").write_text(USER)
        (login / "password").write_text(PASSWORD)
        self.connection: dict[str, Any] = {
            "bootstrapServers": [broker.sasl_tls_bootstrap],
            "tls": {"caFile": broker.pki.ca_file, "certFile": None, "keyFile": None},
            "sasl": {"mechanism": "SCRAM-SHA-512", "directory": str(login), "identity": None, "oauth": None},
        }
        self.brokers = parse_brokers(Section(self.connection, "connection"))
        self._admin = AdminClient({"bootstrap.servers": broker.bootstrap, **QUIET})

    def grant(self, given: Sequence[Right]) -> None:
        """Grant the user these rights, and wait until the broker enforces them."""
        bindings = [binding for right in given for binding in right.bindings(self.group)]
        for done in self._admin.create_acls(bindings).values():
            done.result(PATIENCE_S)

        def known() -> bool:
            acls = self._admin.describe_acls(all_of_user()).result(PATIENCE_S)
            return all(binding in acls for binding in bindings)

        eventually(known, timeout_s=PATIENCE_S, what="the broker to know of the rights")

    def revoke(self, taken: Sequence[Right]) -> None:
        """Revoke rights, and wait until the broker enforces it."""
        bindings = [binding for right in taken for binding in right.bindings(self.group)]
        self._remove(
            [
                AclBindingFilter(
                    each.restype,
                    each.name,
                    each.resource_pattern_type,
                    each.principal,
                    each.host,
                    each.operation,
                    each.permission_type,
                )
                for each in bindings
            ]
        )

    def revoke_all(self) -> None:
        """Leave the user without any right: one for a topic of an earlier test is enough to get a producer id."""
        self._remove([all_of_user()])

    def _remove(self, filters: list[AclBindingFilter]) -> None:
        for done in self._admin.delete_acls(filters).values():
            done.result(PATIENCE_S)

        def gone() -> bool:
            left = [self._admin.describe_acls(each).result(PATIENCE_S) for each in filters]
            return not any(left)

        eventually(gone, timeout_s=PATIENCE_S, what="the broker to know that the rights are gone")

    def main(self) -> Worker:
        return self.fleet.worker(connection=self.connection)

    def retry(self) -> Worker:
        return self.fleet.retry_worker(connection=self.connection)

    def check(self) -> dict[str, Any]:
        """The answer of the check of a new revision."""
        config = self.folder / "check.json"
        config.write_text(json.dumps(self.fleet.settings(connection=self.connection)))
        done = subprocess.run(
            [COMMAND, "check", "--config", str(config)], capture_output=True, text=True, check=False, timeout=PATIENCE_S
        )
        answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return answer

    def redrive(self) -> Ended:
        """A run of a Redrive, to its end."""
        settings = redrive_settings(self.group, self.kafka, partitions=PARTITIONS, connection=self.connection)
        return start_redrive(settings, self.folder).end()

    def begin(self) -> None:
        """Write a record that is refused between two that are not."""
        self.fleet.send({"do": "ok", "n": 0}, {"do": "fail", "n": 1}, {"do": "ok", "n": 2}, partition=0)

    def assert_all_comes_through(self) -> None:
        """The refused record fails for good, its handler is corrected, a Redrive puts it back, and nothing is left."""
        eventually(
            lambda: set(self.fleet.origins_failed()) == {(0, 1)}, timeout_s=PATIENCE_S, what="the record to fail"
        )
        (self.folder / "corrected").touch()
        ended = self.redrive()
        assert (ended.code, ended.counts) == (0, (1, 1, 0)), ended
        done = {(0, 0), (0, 1), (0, 2)}
        eventually(lambda: set(self.fleet.origins_done()) == done, timeout_s=PATIENCE_S, what="all to be handled")
        self.fleet.wait_committed()

    def committed(self, who: str, topic: str) -> int:
        """The committed offset of the main or the retry workers in the partition of the records."""
        group = self.group if who == "main" else naming.retry_group(self.group)
        return self.kafka.committed(group, topic).get(0, 0)


@pytest.fixture
def fleet(secured: KafkaBroker, tmp_path: Path) -> Iterator[Secured]:
    made = Secured(secured, tmp_path)
    yield made
    made.revoke_all()


def all_of_user() -> AclBindingFilter:
    """All rights of the user."""
    anything: Any = None
    return AclBindingFilter(
        ResourceType.ANY,
        anything,
        ResourcePatternType.ANY,
        f"User:{USER}",
        anything,
        AclOperation.ANY,
        AclPermissionType.ANY,
    )


def reports(worker: Worker) -> str:
    """The reports of a worker: its log, and its reason not to be ready."""
    return worker.log.read_text() + worker.get("/readyz")[1]


def wait_told(worker: Worker, words: str) -> None:
    """Wait until a worker reports this."""
    eventually(lambda: re.search(words, reports(worker)), timeout_s=PATIENCE_S, what=f"a worker to report {words}")


def test_documented_rights_are_enough_for_workers_and_redrives(fleet: Secured) -> None:
    fleet.grant(rights("workers"))
    assert fleet.check()["reason"] == "CheckPassed"
    fleet.begin()
    with fleet.main() as main, fleet.retry() as retry:
        fleet.assert_all_comes_through()
        for worker in (main, retry):
            assert not re.search("authoriz", reports(worker), re.IGNORECASE), reports(worker)


@dataclass(frozen=True, slots=True)
class Missing:
    """The effect of one missing right: who reports what, and before which record of which topic the worker stops."""

    who: str
    words: str
    topic: str
    stands_at: int


MISSING = {
    "Read-topic-orders": Missing("main", "topics {group}: not authorized; allow the principal .*Read", "{group}", 0),
    "Write-topic-orders-done": Missing("main", "could not write to topic '{group}-done': .*_AUTHORIZ", "{group}", 0),
    "Read-topic-_fleet.orders.failed": Missing(
        "retry", r"{wait}-0: TOPIC_AUTHORIZATION_FAILED: Fetch from broker", "{wait}", 0
    ),
    "Write-topic-_fleet.orders.failed": Missing("main", "could not write to topic '{wait}': .*_AUTHORIZ", "{group}", 1),
    "Read-group-orders": Missing("main", "group '{group}': .* allow the principal Read on the group", "{group}", 0),
    "Read-group-orders.retry": Missing("retry", r"group '{group}\.retry': .*allow the principal Read", "{wait}", 0),
}


@pytest.mark.parametrize("missing", rights("workers"), ids=str)
def test_missing_right_is_reported_and_nothing_is_lost_until_it_is_granted(fleet: Secured, missing: Right) -> None:
    expected = MISSING[str(missing)]
    names = {"group": fleet.group, "wait": fleet.fleet.retry_topic("1s")}
    fleet.grant([right for right in rights("workers") if right != missing])
    fleet.begin()
    with fleet.main() as main, fleet.retry() as retry:
        teller = main if expected.who == "main" else retry
        words = expected.words.format(**names)
        wait_told(teller, words)
        assert fleet.committed(expected.who, expected.topic.format(**names)) <= expected.stands_at
        fleet.grant([missing])
        fleet.assert_all_comes_through()


def test_missing_write_right_is_named_and_work_continues_once_granted(fleet: Secured) -> None:
    """Brokers then refuse the producer id itself, which librdkafka treats as fatal."""
    given = rights("workers")
    writes = [right for right in given if right.operation == "Write"]
    # The topic's own refusal may come before that of the id, and the reason of a producer's end may get lost.
    words = (
        "could not write to topic '{}': ((TOPIC|CLUSTER)_AUTHORIZATION_FAILED|_FATAL): "
        ".*allow the principal Write on the topic"
    )
    fleet.grant([right for right in given if right not in writes])
    fleet.begin()
    with fleet.main() as main, fleet.retry() as retry:
        wait_told(main, words.format(fleet.fleet.output))
        wait_told(main, "the producer ended: CLUSTER_AUTHORIZATION_FAILED")
        assert fleet.committed("main", fleet.group) == 0
        fleet.grant(writes)
        eventually(lambda: fleet.fleet.origins_failed(), timeout_s=PATIENCE_S, what="the record to fail")
        fleet.revoke(writes)
        ended = fleet.redrive()
        assert ended.code == EXIT_SURROUNDINGS, ended
        assert re.match(words.format(naming.redrive_topic(fleet.group)), ended.result["message"]), ended
        fleet.grant(writes)
        fleet.assert_all_comes_through()
        for worker in (main, retry):
            assert "session ended" not in worker.log.read_text()


def test_unreadable_topic_is_reported_while_the_right_is_missing(fleet: Secured) -> None:
    """librdkafka reports it once; later readers of the status see it all the same."""
    read = next(right for right in rights("workers") if str(right) == "Read-topic-orders")
    fleet.grant([replace(read, operation="Describe"), *(right for right in rights("workers") if right != read)])
    fleet.begin()
    with fleet.main() as main, fleet.retry():
        words = f"{fleet.group}-0: TOPIC_AUTHORIZATION_FAILED: .*allow the principal Read on the topic"
        wait_told(main, words)
        # Tried every five seconds, so librdkafka's one report is long over.
        eventually(
            lambda: len(re.findall("so partitions do not start", main.log.read_text())) >= 4,
            timeout_s=PATIENCE_S,
            what="the commits to be asked for again and again",
        )
        assert "TOPIC_AUTHORIZATION_FAILED" in main.get("/member")[1]
        fleet.grant([read])
        fleet.assert_all_comes_through()
        eventually(
            lambda: "AUTHORIZATION" not in main.get("/member")[1], timeout_s=PATIENCE_S, what="the error to be gone"
        )


@pytest.mark.parametrize(
    ("missing", "reason", "words"),
    [
        ("Read-topic-_fleet.orders.failed", "TopicAuthorizationFailed", "topic {failed}: not authorized; .* Read"),
        ("Read-group-orders.retry", "GroupAuthorizationFailed", "the run's group: not authorized; .* Read"),
    ],
)
def test_redrive_names_the_missing_read_right(fleet: Secured, missing: str, reason: str, words: str) -> None:
    taken = next(right for right in rights("workers") if str(right) == missing)
    # Topics that may be written to may be described.
    fleet.grant([right for right in rights("workers") if right != taken])
    ended = fleet.redrive()
    assert (ended.code, ended.result["reason"]) == (EXIT_SURROUNDINGS, reason), ended
    assert re.match(words.format(failed=naming.failed_topic(fleet.group)), ended.result["message"]), ended


class Operator:
    """The operator's own access to a group's topics and groups, as the same user."""

    def __init__(self, fleet: Secured, client: NetworkClient) -> None:
        self.group, self.kafka, self.client = fleet.group, fleet.kafka, client
        self.topic = naming.retry_topic(self.group, "7s")
        subscription = GroupSubscription(
            group_id=self.group,
            topics=(self.group,),
            failed_topic=naming.failed_topic(self.group),
            retry=retry_subscription(self.group, ("1s",)),
        )
        self.watcher = Watcher(client, subscription)

    def wait_seen(self, *, settings: bool) -> None:
        """Wait until a poll returns everything of the group, of the source's settings only what may be described."""

        def seen() -> bool:
            flow = self.watcher.known()
            poll = self.watcher.poll()
            assert not any(topic.error for topic in poll.topics.values()), poll.topics
            assert not any(topic.error for topic in flow.topics.values()), flow.topics
            assert not poll.groups[self.group].error, poll.groups
            return (flow.source_max_message_bytes is not None) == settings

        eventually(seen, timeout_s=PATIENCE_S, what="everything to be seen")

    def refused(self) -> set[tuple[str, str]]:
        """Do everything that is done to a group's topics, from creation to deletion; return the refusals."""
        refusals: list[Refusal] = []
        admin = KafkaAdmin(self.client)

        def act(plan: TopicsPlan) -> bool:
            done = admin.change_topics(plan, retry_group=naming.retry_group(self.group))
            refusals.extend(done.refusals)
            return bool(done.changed)

        if not act(TopicsPlan(create=(WantedTopic(name=self.topic, partitions=1),))):
            self.kafka.create(self.topic, partitions=1)
        eventually(lambda: self.topic in self.kafka.topics(), timeout_s=PATIENCE_S, what="the topic to be there")
        act(TopicsPlan(grow=(WantedTopic(name=self.topic, partitions=2),)))
        act(TopicsPlan(alter={self.topic: {"retention.ms": "86400000"}}))
        refusals += admin.delete_topics([self.topic])
        groups = [self.group, naming.retry_group(self.group)]
        for group in groups:
            commit(self.kafka.bootstrap, group, {(self.group, 0): 0})
        refusals += admin.delete_groups(groups)
        return {(refusal.subject, refusal.reason) for refusal in refusals}


@pytest.fixture
def operator(fleet: Secured) -> Iterator[Operator]:
    client = NetworkClient(connection_settings(fleet.brokers, "operator"))
    try:
        yield Operator(fleet, client)
    finally:
        client.close()


@pytest.mark.parametrize("missing", [None, *rights("operator")], ids=str)
def test_operator_needs_each_documented_right_and_no_other(
    fleet: Secured, operator: Operator, missing: Right | None
) -> None:
    fleet.grant([right for right in (*rights("workers"), *rights("operator")) if right != missing])
    no_settings = missing is not None and missing.operation == "DescribeConfigs"
    operator.wait_seen(settings=not no_settings)
    if missing is None or no_settings:
        assert operator.refused() == set()
    else:
        retry = naming.retry_group(operator.group)
        subject = {"orders": operator.group, "orders.retry": retry}.get(missing.names[0], operator.topic)
        assert operator.refused() == {(subject, "AuthorizationFailed")}
