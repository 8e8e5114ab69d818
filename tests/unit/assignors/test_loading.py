"""Finding assignors by name, and what is said about those that cannot serve."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from types import ModuleType

import pytest

from fleet_consumer.assignors import (
    BUILT_IN,
    COOPERATIVE,
    EAGER,
    Assignment,
    AssignorInvalid,
    AssignorUnknown,
    ClusterView,
    Subscription,
    TakesRates,
    complete,
    load,
)

MODULE = "assignors_of_a_user"


class Plain:
    """No more than must be there."""

    name = "plain"

    def assign(self, cluster: ClusterView, subscriptions: Mapping[str, Subscription]) -> dict[str, Assignment]:
        return {member: Assignment({}) for member in subscriptions}


class Weighted(Plain):
    """Everything that may be there."""

    name = "weighted"
    version = 3
    protocol = COOPERATIVE

    def __init__(self) -> None:
        self.given: list[tuple[Assignment, int]] = []

    def subscription_user_data(self, topics: Sequence[str]) -> bytes | None:
        return ",".join(topics).encode()

    def on_assignment(self, assignment: Assignment, generation: int) -> None:
        self.given.append((assignment, generation))


class Rated(Plain):
    """One that deals by load and leaves out what has a default."""

    def __init__(self) -> None:
        self.seen: list[Mapping[str, Mapping[int, float]]] = []

    def on_rates(self, rates: Mapping[str, Mapping[int, float]]) -> None:
        self.seen.append(rates)


class RatesIsNoMethod(Plain):
    on_rates = "later"


class Raising(Plain):
    def __init__(self) -> None:
        raise KeyError("WEIGHT")


class NeedsArguments(Plain):
    def __init__(self, weight: int) -> None:
        self.weight = weight


class Nameless(Plain):
    name = ""


class NumberedName(Plain):
    name = 5  # type: ignore[assignment]


class TextVersion(Plain):
    version = "1"


class TextProtocol(Plain):
    protocol = "EAGER"


class WithoutAssign:
    name = "without"


class AssignIsNoMethod:
    name = "odd"
    assign = "later"


class RaisingProperty(Plain):
    @property
    def version(self) -> int:
        raise OSError("no such file")


@pytest.fixture(autouse=True)
def module() -> Iterator[ModuleType]:
    made = ModuleType(MODULE)
    made.__dict__.update({name: value for name, value in globals().items() if isinstance(value, type)})
    made.__dict__["not_a_class"] = 7
    sys.modules[MODULE] = made
    yield made
    del sys.modules[MODULE]


def test_every_built_in_assignor_is_loaded_by_name() -> None:
    assert {name: load(name).name for name in BUILT_IN} == {name: name for name in BUILT_IN}
    assert set(BUILT_IN) == {"range", "roundrobin", "sticky", "cooperative-sticky", "cooperative-weighted"}
    cooperative = {name for name in BUILT_IN if load(name).protocol is COOPERATIVE}
    assert cooperative == {"cooperative-sticky", "cooperative-weighted"}


def test_each_load_makes_an_assignor_of_its_own() -> None:
    first, second = load("sticky"), load("sticky")
    first.on_assignment(Assignment({"t": [0]}), 1)
    assert second.subscription_user_data(["t"]) is None


def test_custom_assignor_is_loaded_as_it_is() -> None:
    assignor = load(f"{MODULE}:Weighted")
    assert isinstance(assignor, Weighted)
    assert (assignor.name, assignor.version, assignor.protocol) == ("weighted", 3, COOPERATIVE)


def test_omitted_methods_of_a_custom_assignor_have_javas_defaults() -> None:
    assignor = load(f"{MODULE}:Plain")
    assert (assignor.name, assignor.version, assignor.protocol) == ("plain", 0, EAGER)
    assert assignor.subscription_user_data(["t"]) is None
    assignor.on_assignment(Assignment({}), 1)
    assert assignor.assign(ClusterView({}), {"m": Subscription([])}) == {"m": Assignment({})}


def test_custom_assignor_takes_rates_only_if_it_has_the_method() -> None:
    rated = load(f"{MODULE}:Rated")
    assert isinstance(rated, TakesRates)
    rated.on_rates({"t": {0: 1.0}})
    assert not isinstance(load(f"{MODULE}:Plain"), TakesRates)


def test_object_of_the_users_own_is_checked_in_the_same_way() -> None:
    own = Weighted()
    assert complete(own, "own") is own
    with pytest.raises(AssignorInvalid, match=r"'own' is not an assignor: it lacks name and assign"):
        complete(object(), "own")


@pytest.mark.parametrize(
    "name", ["ranged", "no.such.module:Class", "fleet_consumer.assignors:Missing", ":Class", "module:", ""]
)
def test_unknown_assignor_is_refused_by_name(name: str) -> None:
    with pytest.raises(AssignorUnknown, match=repr(name)) as refused:
        load(name)
    assert refused.value.reason == "AssignorUnknown"


@pytest.mark.parametrize(
    ("name", "complaint"),
    [
        ("Raising", r"cannot create assignor .*: KeyError: 'WEIGHT'"),
        ("NeedsArguments", r"missing 1 required positional argument: 'weight'; the class is called without arguments"),
        ("Nameless", r"name is ''; it must be a non-empty string"),
        ("NumberedName", r"name is 5; it must be a non-empty string"),
        ("TextVersion", r"version is '1'; it must be an int"),
        ("TextProtocol", r"protocol is 'EAGER'; it must be EAGER or COOPERATIVE"),
        ("WithoutAssign", r"it lacks assign"),
        ("AssignIsNoMethod", r"assign is not callable"),
        ("RatesIsNoMethod", r"on_rates is not callable"),
        ("RaisingProperty", r"reading version raised OSError: no such file"),
        ("not_a_class", r"is int, not a class; name a class"),
    ],
)
def test_invalid_assignor_is_refused_with_its_defect(name: str, complaint: str) -> None:
    with pytest.raises(AssignorInvalid, match=complaint) as refused:
        load(f"{MODULE}:{name}")
    assert f"{MODULE}:{name}" in str(refused.value)
    assert refused.value.reason == "AssignorInvalid"


def test_module_that_raises_on_import_is_reported_with_its_error(
    tmp_path: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    with open(f"{tmp_path}/broken_assignors.py", "w") as file:
        file.write("raise RuntimeError('no licence')\n")
    with pytest.raises(AssignorUnknown, match=r"'broken_assignors:Any': RuntimeError: no licence"):
        load("broken_assignors:Any")
