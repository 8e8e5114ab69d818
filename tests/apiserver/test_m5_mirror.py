"""M5: `status` mirrors every state of the classic group, at each step equal to Kafka's own tool."""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from fleet_consumer.group.membership import Membership
from fleet_operator.planning import times
from tests.apiserver import objects
from tests.apiserver.conftest import PARTITIONS, PATIENCE_S, Operator, Site, make_topic
from tests.apiserver.nodes import Nodes
from tests.broker.members import Member, await_records, await_shares, produce, settings
from tests.support import group_tool
from tests.support.apiserver import ApiServer
from tests.support.assignors import SlowRange
from tests.support.kafka import KafkaBroker
from tests.support.waiting import eventually

HOLD_S = 150.0
"""The longest time for which a member or an assignor is slow: as long as a step may take on a busy machine."""
SEEN_S = 2.0
"""A state that lasts is seen within this time."""
RECORDS, LATE = 2, 8


@dataclass
class Pages:
    """The workers' /member pages of members that run in this process; each has an address of its own."""

    members: dict[str, Member] = field(default_factory=dict)

    def document(self, pod: str) -> dict[str, Any]:
        membership = self.members[pod].membership if pod in self.members else Membership(group_id="")
        return {
            "memberId": membership.member_id,
            "generation": membership.generation,
            "state": membership.state,
            "rejoins": [rejoin._asdict() for rejoin in membership.rejoins],
        }

    @contextmanager
    def serving(self, pod: str) -> Iterator[tuple[str, int]]:
        pages = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                body = json.dumps(pages.document(pod)).encode()
                self.send_response(200)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *args: object) -> None:
                """Requests are not events."""

        with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
            thread = threading.Thread(target=server.serve_forever, name=f"page-{pod}")
            thread.start()
            try:
                yield "127.0.0.1", server.server_port
            finally:
                server.shutdown()
                thread.join()


@dataclass
class Mirror:
    """One ConsumerGroup's status compared with the tool."""

    here: Site
    broker: KafkaBroker

    @property
    def group_id(self) -> str:
        return f"{self.here.name}.flights"

    @property
    def status(self) -> dict[str, Any]:
        return self.here.status("consumergroups", "flights")

    def wait(self, state: str, began: float, **shown: Any) -> dict[str, Any]:
        """Wait until the status shows a state (and more), which began at a wall-clock time; print how long it took."""

        def there() -> dict[str, Any]:
            status = self.status
            assert status.get("state") == state, (status.get("state"), status.get("transitions"))
            assert {key: status.get(key) for key in shown} == shown, status
            return status

        status = eventually(there, timeout_s=PATIENCE_S, what=f"{state} in the status", poll_s=0.05)
        last = status["transitions"][-1]
        seen = (times.from_text(last["at"]) or 0.0) - began
        print(f"{state}: seen after {seen:.3f} s, in the status after {time.time() - began:.3f} s: {last}")
        assert last["to"] == state
        assert status["stateSince"] == re.sub(r"\.\d+Z", "Z", last["at"])
        return status

    def agrees_on_state(self, members: int) -> None:
        (row,) = group_tool.describe(self.broker, self.group_id, "--state")
        status = self.status
        assert (status["state"], status["memberCount"]) == (row["STATE"], int(row["#MEMBERS"])), (status, row)
        assert status["memberCount"] == members
        address, broker_id = row["COORDINATOR (ID)"].split()
        assert (status["coordinator"]["host"], f"({status['coordinator']['id']})") == (address, broker_id)
        if row["STATE"] == "Stable":
            assert status["assignor"] == row["ASSIGNMENT-STRATEGY"] == "slow-range"

    def agrees_on_members(self, topic: str) -> None:
        rows = group_tool.describe(self.broker, self.group_id, "--members", "--verbose")
        theirs = {row["CONSUMER-ID"]: (row["CLIENT-ID"], row["HOST"], int(row["#PARTITIONS"])) for row in rows}
        status = self.status
        ours = {entry["id"]: (entry["pod"], entry["host"], entry["partitionCount"]) for entry in status["members"]}
        assert ours == theirs
        if status["state"] == "Stable":
            assigned = {row["CONSUMER-ID"]: row["CURRENT-ASSIGNMENT"] for row in rows}
            for entry in status["members"]:
                (part,) = entry["partitions"]
                first, last = map(int, part["ranges"].split("-"))
                assert assigned[entry["id"]] == f"{topic}:{','.join(map(str, range(first, last + 1)))}"

    def agrees_on_lag(self, lag: int) -> None:
        rows = group_tool.describe(self.broker, self.group_id, "--offsets")
        assert sum(int(row["LAG"]) for row in rows) == lag
        assert len(rows) == PARTITIONS

        def same() -> bool:
            status = self.status
            assert status.get("lagApproximate") == lag, status
            return True

        eventually(same, timeout_s=PATIENCE_S, what=f"a lag of {lag}")


def moves(status: dict[str, Any]) -> list[tuple[str, str]]:
    return [(entry["from"], entry["to"]) for entry in status["transitions"]]


@pytest.mark.together
def test_m5_status_shows_each_state_of_a_scripted_group_as_the_tool_does(
    site: Callable[..., Site], broker: KafkaBroker, nodes: Nodes, operator: Operator
) -> None:
    here, pages = site("mirror"), Pages()
    topic, mirror = f"{here.name}-topic", Mirror(here, broker)
    make_topic(broker, topic)
    produce(broker.bootstrap, topic, PARTITIONS, RECORDS)
    give_back, go_on = threading.Event(), threading.Event()
    go_on.set()

    def member(pod: str, **how: Any) -> Member:
        assignors = (SlowRange(go_on, HOLD_S),)
        base = settings(broker.bootstrap, mirror.group_id, assignors=assignors, auto_offset_reset="earliest")
        base = replace(base, connection=replace(base.connection, client_id=pod), max_poll_interval_ms=300_000)
        pages.members[pod] = Member(base, [topic], **how)
        return pages.members[pod]

    with pages.serving("flights-fleet-0") as first_page, pages.serving("flights-fleet-1") as second_page:
        nodes.addresses[here.name, "flights-fleet-0"] = first_page
        nodes.addresses[here.name, "flights-fleet-1"] = second_page
        here.apply(objects.handler_source(here.name), objects.cluster(here.name, broker.bootstrap))
        here.apply(objects.group(here.name, topics=[topic], replicas=2))
        here.wait_ready_replicas(2)
        mirror.wait("Dead", time.time())
        with member("flights-fleet-0", while_revoking=lambda: give_back.wait(HOLD_S)) as first:
            await_shares([first], topic, PARTITIONS)
            began = time.time()
            await_records([first], {(number, offset) for number in range(PARTITIONS) for offset in range(RECORDS)})
            mirror.wait("Stable", began, memberCount=1)
            eventually(
                lambda: mirror.status["transitions"][-1].get("generation") == first.membership.generation,
                timeout_s=PATIENCE_S,
                what="the generation that the worker reports",
            )
            with member("flights-fleet-1") as second:
                try:
                    step_through_a_rebalance(mirror, (first, second), topic, give_back, go_on)
                finally:
                    give_back.set()
                    go_on.set()
                second.stop("leave")
                began = time.time()
                first.stop("leave")
        mirror.wait("Empty", began, memberCount=0)
        mirror.agrees_on_state(0)
        produce(broker.bootstrap, topic, 1, LATE, RECORDS)
        mirror.agrees_on_lag(LATE)
        began = time.time()
        group_tool.delete(broker, mirror.group_id)
        ended = mirror.wait("Dead", began, memberCount=0)
    assert [entry["cause"] for entry in ended["transitions"]][-1] == (
        "the group was deleted, or its offsets have expired"
    )

    eventually(
        lambda: [item["reason"] for item in here.every("events", "")].count("GroupDead") == 1,
        timeout_s=PATIENCE_S,
        what="one Event about the group that is gone",
    )
    words = [entry["to"] for entry in ended["transitions"]]
    assert {"PreparingRebalance", "CompletingRebalance", "Stable", "Empty", "Dead"} == set(words), ended["transitions"]
    at = [entry["at"] for entry in ended["transitions"]]
    assert at == sorted(at)


def step_through_a_rebalance(
    mirror: Mirror, members: tuple[Member, Member], topic: str, give_back: threading.Event, go_on: threading.Event
) -> None:
    """A slow revocation, then a slow assignor, compared with the tool at each step."""
    second = members[1]
    eventually(lambda: second.membership.state == "PreparingRebalance", timeout_s=PATIENCE_S, what="the second to join")
    began = time.time()
    status = mirror.wait("PreparingRebalance", began - 0.5, memberCount=2)
    cause = status["transitions"][-1]["cause"]
    assert "flights-fleet-1" in cause, cause
    mirror.agrees_on_state(2)
    mirror.agrees_on_members(topic)
    reported = ("flights-fleet-1: first subscription", False)

    def told() -> bool:
        entry = mirror.status["transitions"][-1]
        assert (entry["cause"], entry["inferred"]) == reported, entry
        return True

    eventually(told, timeout_s=PATIENCE_S, what="the cause that the worker reports")
    go_on.clear()
    began = time.time()
    give_back.set()
    status = mirror.wait("CompletingRebalance", began, memberCount=2)
    last = status["transitions"][-1]
    assert (last["cause"], last["inferred"]) == ("all members have joined", False)
    mirror.agrees_on_state(2)
    mirror.agrees_on_members(topic)
    began = time.time()
    go_on.set()
    await_shares(members, topic, PARTITIONS)
    status = mirror.wait("Stable", began, memberCount=2)
    assert status["transitions"][-1]["cause"] == "the leader has assigned the partitions"
    mirror.agrees_on_state(2)
    mirror.agrees_on_members(topic)
    mirror.agrees_on_lag(0)
    expected = [("Stable", "PreparingRebalance"), ("PreparingRebalance", "CompletingRebalance")]
    assert moves(status)[-3:] == [*expected, ("CompletingRebalance", "Stable")], status["transitions"]
    eventually(
        lambda: mirror.status.get("generation") == second.membership.generation,
        timeout_s=PATIENCE_S,
        what="the new generation",
    )


@pytest.mark.together
def test_m5_record_of_states_goes_on_over_a_new_process_of_the_operator(
    quiet_api: ApiServer, quiet_site: Callable[..., Site], broker: KafkaBroker
) -> None:
    """Changes that it did not see are inferred, entries that are there are not repeated."""
    here = quiet_site("mirror-restart")
    mirror = Mirror(here, broker)
    here.apply(objects.handler_source(here.name), objects.cluster(here.name, broker.bootstrap))
    here.apply(objects.group(here.name))
    go_on = threading.Event()
    base = settings(broker.bootstrap, mirror.group_id, assignors=(SlowRange(go_on, HOLD_S),))
    with Operator(quiet_api, "--namespace", here.name) as running:
        mirror.wait("Dead", time.time())
        with Member(base, ["flights"]) as member:
            eventually(lambda: member.membership.state == "CompletingRebalance", timeout_s=PATIENCE_S, what="a leader")
            mirror.wait("CompletingRebalance", time.time())
            running.kill()
            before = moves(mirror.status)
            go_on.set()
            await_shares([member], "flights", PARTITIONS)
            with Operator(quiet_api, "--namespace", here.name):
                status = mirror.wait("Stable", time.time())
                assert moves(status) == [*before, ("CompletingRebalance", "Stable")]
                last = status["transitions"][-1]
                assert (last["cause"], last["inferred"]) == ("while the group was not observed", True)
                member.stop("leave")
                status = mirror.wait("Empty", time.time())
                assert moves(status)[: len(before) + 1] == [*before, ("CompletingRebalance", "Stable")]
