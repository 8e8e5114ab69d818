"""The explanations cover the words of the code, and say nothing about other words."""

from __future__ import annotations

import argparse
import functools
import importlib
import pkgutil
import re
import shlex
from collections.abc import Iterator
from typing import Any, Final, get_args

import pytest
import yaml

import fleet_consumer
from fleet_consumer.contract.failure_reasons import FailureReason, to_api
from fleet_consumer.group.errors import ConsumerError
from fleet_consumer.net.errors import NetError
from fleet_consumer.worker.commands.options import parser
from fleet_operator.api.v1alpha1.explanations import EXPLANATIONS, GROUPS, Explanation
from fleet_operator.api.v1alpha1.model import Phase
from fleet_operator.planning.fleet.pod_wait import OUTSIDE
from fleet_operator.planning.offsets.records import ResetPhase
from fleet_operator.planning.offsets.skips import SkipState
from fleet_operator.planning.state.group import Phase as UpgradePhase
from fleet_operator.planning.status.problems import FAILING_REASONS, REBALANCING
from tests.unit.pages.vocabulary import constants, modules, reasons, strings
from tests.unit.test_documents import anchors
from tests.unit.test_house_rules import ROOT

OPERATOR: Final = ROOT / "operator/fleet_operator"
WORKER: Final = ROOT / "consumer_image/fleet_consumer/worker"
CONSTANTS: Final = (
    OPERATOR / "api/v1alpha1/conditions.py",
    OPERATOR / "planning/scaling/decision.py",
    OPERATOR / "planning/fleet/parsing.py",
    OPERATOR / "planning/fleet/pod_wait.py",
    OPERATOR / "planning/status/transitions.py",
    OPERATOR / "observe/aggregation.py",
    OPERATOR / "reconcilers/transitions.py",
    WORKER / "member.py",
    WORKER / "consume/progress.py",
    WORKER / "lifecycle/termination.py",
)
"""Modules whose CamelCase constants are all words of statuses, of Events or of a worker's report."""
OF_PROGRAMS: Final = {
    "NetError": "a base class, never raised itself",
    "ConsumerError": "a base class, never raised itself",
    "FatalConsumerError": "a base class, never raised itself",
    "KubernetesApiFailed": "a base class, never raised itself",
    "Standby": "a page of the console, which no status shows",
    "ConcurrentUse": "a mistake of a program that uses the library",
    "ConsumerClosed": "a mistake of a program that uses the library",
    "ForkedConsumer": "a mistake of a program that uses the library",
    "GroupIdMissing": "a mistake of a program that uses the library",
    "GroupMetadataUnknown": "a transaction of a program that uses the library",
    "NotAssigned": "a mistake of a program that uses the library",
    "NotSubscribed": "a mistake of a program that uses the library",
    "SubscriptionConflict": "a mistake of a program that uses the library",
    "RecordMissing": "an option of `fleet-consumer failed show`",
    "GroupInUse": "`fleet-consumer reset` and `skip`, which print it themselves",
}
"""Reason words that no status shows, with the place that shows them."""
VERBS: Final = frozenset(["api-resources", "describe", "get", "logs", "rollout status", "wait"])
"""Commands of `kubectl` that change nothing."""
OF_KUBERNETES: Final = frozenset(
    [
        *("configmap", "configmaps", "deployment", "events", "nodes", "pod", "pods", "secrets", "statefulset"),
        *("sparkapplication", "sparkapplications"),
    ]
)
MEANING_CHARACTERS_MAX: Final = 260


def named_by_class(base: type[NetError] | type[ConsumerError]) -> Iterator[str]:
    for each in base.__subclasses__():
        if each.__module__.startswith("fleet_consumer."):
            yield each.reason
        yield from named_by_class(each)


def shown() -> set[str]:
    """Every word that the code can show, and that is not another program's."""
    for module in pkgutil.walk_packages(fleet_consumer.__path__, "fleet_consumer."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    found = {word for path in CONSTANTS for word in constants(path)} | reasons(modules())
    found |= {*named_by_class(NetError), *named_by_class(ConsumerError)}
    found |= {*get_args(Phase), *ResetPhase, *SkipState, *UpgradePhase, *map(to_api, FailureReason)}
    return found | FAILING_REASONS | REBALANCING | (OUTSIDE - {""})


def test_every_word_of_the_code_is_explained() -> None:
    words = shown()
    assert len(words) > 350
    assert sorted(words - EXPLANATIONS.keys() - OF_PROGRAMS.keys()) == []
    assert sorted(OF_PROGRAMS.keys() - words) == [], "no longer in the code"
    assert sorted(OF_PROGRAMS.keys() & EXPLANATIONS.keys()) == [], "explained after all"


def test_every_explained_word_is_in_the_code() -> None:
    assert sorted(EXPLANATIONS.keys() - shown() - strings(modules())) == []


def test_every_word_has_one_row() -> None:
    words = [explanation.word for group in GROUPS.values() for explanation in group]
    assert len(words) == len(set(words))


@functools.cache
def sections(page: str) -> set[str]:
    return anchors((ROOT / "docs" / page).read_text())


def has_section(explanation: Explanation) -> bool:
    """True if the page exists and has the section, without which a reader would have to search the page."""
    name, _, anchor = explanation.page.partition("#")
    return (ROOT / "docs" / name).is_file() and anchor in sections(name)


def test_pages_of_words_have_the_sections() -> None:
    assert {each.word: each.page for each in EXPLANATIONS.values() if not has_section(each)} == {}


def test_meanings_are_a_few_short_sentences() -> None:
    sentence = re.compile(r"[A-Z`][^.]*(?:\.\S[^.]*)*\.")
    bad = {each.word: each.meaning for each in EXPLANATIONS.values() if len(each.meaning) > MEANING_CHARACTERS_MAX}
    bad |= {
        each.word: each.meaning for each in EXPLANATIONS.values() if not 1 <= len(sentence.findall(each.meaning)) <= 3
    }
    assert bad == {}


@functools.cache
def crds() -> list[dict[str, Any]]:
    return [yaml.load(path.read_text(), yaml.CSafeLoader)["spec"] for path in (ROOT / "crds").glob("*.yaml")]


@functools.cache
def kinds() -> set[str]:
    """Names under which `kubectl` knows the operator's kinds, and Kubernetes' own kinds."""
    specs = [crd["names"] for crd in crds()]
    own = {name for names in specs for name in (names["singular"], names["plural"], *names.get("shortNames", ()))}
    return own | OF_KUBERNETES


def is_usable(command: str) -> bool:
    """True for a command that changes nothing, and whose verb, kinds, subcommand and options exist."""
    program, *words = shlex.split(command)
    if program == "fleet-consumer":
        return words[0] == "failed" and isinstance(parser().parse_args(words), argparse.Namespace)
    while words[0].startswith("--"):
        del words[:2]
    verb, *rest = words if words[0] != "rollout" else [" ".join(words[:2]), *words[2:]]
    named = set(rest[0].split(",")) if verb in ("get", "describe") else set()
    named |= {name.partition("/")[0] for name in rest if re.fullmatch(r"[a-z]+/[\w-]+", name)}
    return program == "kubectl" and verb in VERBS and named <= kinds()


def test_first_commands_exist_and_change_nothing() -> None:
    assert {each.word: each.command for each in EXPLANATIONS.values() if not is_usable(each.command)} == {}


@pytest.mark.parametrize("command", ["kubectl delete pod x", "kubectl get fleets", "kubectl logs job/x", "helm list"])
def test_wrong_command_is_found(command: str) -> None:
    assert not is_usable(command)


def test_fields_in_commands_exist() -> None:
    statuses = {crd["names"]["singular"]: crd["versions"][0]["schema"]["openAPIV3Schema"] for crd in crds()}
    found = 0
    for explanation in EXPLANATIONS.values():
        words = shlex.split(explanation.command)
        for field in re.findall(r"jsonpath=\{\.([\w.]+)\}", " ".join(words)):
            schema = statuses[words[words.index("get") + 1]]
            for name in field.split("."):
                schema = schema["properties"][name]
            found += 1
    assert found > 20
