"""The table of `kubectl fleet status`: its width, its order, and unknown numbers."""

from __future__ import annotations

import random

from fleet_kubectl import groups
from fleet_kubectl.groups import fleet_of, problems_first, status_lines
from fleet_kubectl.tables import compact, printable, wrapped
from fleet_operator.api.v1alpha1 import conditions as c
from tests.unit.plugin.fleets import condition, group


def test_every_condition_of_a_group_is_judged() -> None:
    of_groups = set(c.CONSUMER_GROUP_CONDITIONS)
    assert of_groups & c.GOOD.keys() | groups.NOTABLE.keys() == of_groups


def test_problems_come_first_and_each_says_why() -> None:
    refused = group(
        "refused", "shop", condition("Ready", "False", "RevisionRefused"), condition("Stalled", "True", "Refused")
    )
    starting = group("starting", "shop", condition("Ready", "False", "WaitingForReplicas"))
    lossy = group("lossy", "shop", retry={"waiting": 8, "failed": 2})
    fine = group("a-fine", "shop")
    fleets = [fleet_of(body) for body in (fine, lossy, starting, refused)]
    assert [fleet.name for fleet in problems_first(fleets)] == ["refused", "starting", "lossy", "a-fine"]
    lines = status_lines(fleets, width=100, namespaces=False)
    assert lines[0].split() == [
        *("NAME", "READY", "REASON", "STATE", "WORKERS", "LAG", "BEHIND", "WAITING", "FAILED"),
    ]
    assert lines[1].split()[:3] == ["refused", "False", "RevisionRefused"]
    assert lines[3].split()[-2:] == ["8", "2"]
    assert lines[4].split() == ["a-fine", "True", "FleetReady", "Stable", "3/3", "0", "0s", "-", "-"]


def test_table_fits_a_hundred_columns_with_the_longest_words() -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    dice = random.Random(seed)
    longest = condition("Ready", "False", "ProgressDeadlineExceeded")
    bodies = [
        group(
            "n" * dice.randint(1, 253),
            "s" * dice.randint(1, 63),
            longest,
            state="CompletingRebalance",
            readyReplicas=dice.randint(0, 10_000),
            targetReplicas=dice.randint(0, 10_000),
            lagApproximate=2 ** dice.randint(0, 50),
            behindText=">23h59m",
            retry={"waiting": 2 ** dice.randint(0, 40), "failed": dice.randint(0, 10**12)},
        )
        for _ in range(40)
    ]
    for namespaces in (False, True):
        lines = status_lines([fleet_of(body) for body in bodies], width=100, namespaces=namespaces)
        assert max(map(len, lines)) <= 100
        assert all("False" in line for line in lines[1:])


def test_unknown_numbers_are_not_shown_as_zero() -> None:
    body = group("new")
    del body["status"]
    fleet = fleet_of(body)
    assert (fleet.ready, fleet.reason) == ("Unknown", groups.NOT_SEEN)
    assert fleet.cells()[5:] == ("0/-", "-", "-", "-", "-")
    assert fleet.summary()["failed"] is None
    stale = fleet_of(
        group("stale", "shop", condition("LagKnown", "Unknown", "BrokerUnreachable"), lagApproximate=65536)
    )
    assert stale.cells()[6] == "65.5k?"


def test_numbers_are_short() -> None:
    assert [compact(n) for n in (None, 0, 9999, 65536, 1_048_576, 999_999, 2**50)] == [
        *("-", "0", "9999", "65.5k", "1.05M", "1000k", "1126T"),
    ]


def test_text_of_others_sends_no_control_sequences_to_the_terminal() -> None:
    assert printable("a\x1b[31mred\x07\nnext") == "a\\x1b[31mred\\x07 next"
    assert all(line.isprintable() for line in wrapped("\x1b]0;title\x07" + "word " * 50, indent="  "))
