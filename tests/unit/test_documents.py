"""Names in documents exist: links, paths, make targets, commands' options, metrics, fields of objects, reasons."""

from __future__ import annotations

import importlib
import importlib.util
import re
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from e2e.demo.backfill import compared_line, parquet_line
from fleet_consumer import Consumer, Record, Records, Run
from fleet_consumer.clock import SystemClock
from fleet_consumer.worker.breaker.pacing import BreakerSnapshot
from fleet_consumer.worker.commands.options import parser
from fleet_consumer.worker.member import WorkerState, retry_document
from fleet_consumer.worker.metrics import GroupLabels, metrics_page
from fleet_operator.runtime.metrics import Metrics
from tests.run import SUITES

ROOT = Path(__file__).parents[2]
PAGES = {str(path.relative_to(ROOT)): path.read_text() for path in (*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"))}
CONTRIBUTING = "CONTRIBUTING.md"
MANUALS = {
    name: text for name, text in PAGES.items() if name in ("README.md", CONTRIBUTING) or name.startswith("docs/")
}
FENCED = re.compile(r"^```\w*\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SOURCES = ("consumer_image", "operator", "crds", "charts/consumer-fleet/alerts")
PACKAGES = ("consumer_image/fleet_consumer", "operator/fleet_operator")
"""The folders that paths in documents may begin below, in addition to the root."""
OF_THE_READER = {"shop/orders.py"}
"""Files of the application in docs/own-image.md."""
JAVA = {"LogAppendTime", "ConsumerPartitionAssignor", "AlterConfigs", "DescribeConfigs"}
"""Words of Kafka that these pages explain themselves by."""
LIBRARY: Mapping[str, type] = {"consumer": Consumer, "record": Record, "records": Records, "run": Run}
"""The classes of the objects in docs/library.md; `records` is a field of a CRD as well."""


def quoted(text: str) -> set[str]:
    """Names in backticks, outside of code blocks."""
    return set(re.findall(r"`([^`\n]+)`", FENCED.sub("", text)))


def anchors(text: str) -> set[str]:
    titles = re.findall(r"^#+ (.*)$", FENCED.sub("", text), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", title).strip().lower().replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page: str) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", FENCED.sub("", PAGES[page])):
        if "://" in target:
            continue
        path, _, anchor = target.partition("#")
        found = (ROOT / page).parent / path if path else ROOT / page
        assert found.exists(), f"{page}: {target}"
        assert not anchor or anchor in anchors(found.read_text()), f"{page}: {target}"


def test_paths_of_the_repository_exist() -> None:
    """Paths with a folder; a bare file name is one of the reader's own."""
    found = {
        (page, name)
        for page, text in MANUALS.items()
        for name in quoted(text)
        if re.fullmatch(r"[\w.-]+(?:/[\w.-]+)+/?", name) and name not in OF_THE_READER
    }
    assert len(found) >= 20
    for page, name in sorted(found):
        assert any((ROOT / folder / name).exists() for folder in ("", *PACKAGES)), f"{page}: {name}"


def test_names_in_the_packages_exist() -> None:
    found = {
        (page, name)
        for page, text in MANUALS.items()
        for name in quoted(text)
        if re.fullmatch(r"fleet_(?:consumer|operator)(?:\.\w+)+", name)
    }
    assert found
    for page, name in sorted(found):
        module, _, attribute = name.rpartition(".")
        try:
            importlib.import_module(name)
        except ModuleNotFoundError:
            assert hasattr(importlib.import_module(module), attribute), f"{page}: {name}"


def test_every_page_is_listed() -> None:
    pages = {path.name for path in (ROOT / "docs").glob("*.md")} - {"README.md"}
    assert pages <= set(re.findall(r"\]\(([a-z-]+\.md)\)", PAGES["docs/README.md"]))


def test_installation_is_of_the_version_that_the_changelog_describes() -> None:
    version = re.findall(r"^## (\d+\.\d+\.\d+)", PAGES["CHANGELOG.md"], re.MULTILINE)[0]
    found = {
        tag
        for page in ("docs/install.md", "docs/own-image.md", "docs/backfill.md")
        for tag in re.findall(r"/consumer-fleet-(?:operator|consumer|spark):([\w.]+)", PAGES[page])
    }
    assert found == {version}


def test_install_command_of_the_readme_is_that_of_the_page() -> None:
    (command,) = re.findall(r"^helm install .*$", PAGES["README.md"], re.MULTILINE)
    assert command in PAGES["docs/install.md"].splitlines()


def test_modules_that_are_run_exist() -> None:
    named = {name for text in MANUALS.values() for name in re.findall(r"python -m ([\w.]+)", text)}
    assert named
    assert [name for name in sorted(named) if importlib.util.find_spec(name) is None] == []


def test_suites_are_listed_with_their_limits() -> None:
    rows = re.findall(r"^\| `(\w+)` \| `([\w/]+)` \| (\d+) s \|", PAGES[CONTRIBUTING], re.MULTILINE)
    suites = [suite for suite in SUITES if suite.paths]
    assert rows == [(suite.name, suite.paths[0], str(suite.limit_s)) for suite in suites]
    assert set(re.findall(r"--suite (\w+)", PAGES[CONTRIBUTING])) <= {suite.name for suite in suites}


def test_make_targets_are_in_the_makefile() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = {word for text in PAGES.values() for word in re.findall(r"(?:^|[`(])make (?:-s )?([a-z-]+)", text, re.M)}
    assert named
    assert named <= targets


def test_demo_page_names_the_two_commands_that_set_everything_up() -> None:
    """Both depend on the target that makes the virtual environment, and a reader is told of nothing to do before."""
    section = re.split(r"^## ", PAGES["docs/demo.md"], flags=re.MULTILINE)[1:]
    (text,) = [part for part in section if part.startswith("Two commands\n")]
    assert "Each does all of its own set-up on a fresh machine" in text
    block = re.findall(r"```\n(.*?)```", text, flags=re.DOTALL)[0]
    named = [line.partition("#")[0].strip() for line in block.splitlines()]
    assert named == ["make demo", "make test"]
    makefile = (ROOT / "Makefile").read_text()
    for command in named:
        assert re.search(rf"^{command.removeprefix('make ')}: venv ", makefile, re.MULTILINE)


def commands() -> Iterator[list[str]]:
    """Every `fleet-consumer` command with options, in blocks and in sentences."""
    for text in MANUALS.values():
        for line in (*re.findall(r"^(fleet-consumer .*)$", text, re.MULTILINE), *quoted(text)):
            if line.startswith("fleet-consumer ") and " --" in line and not line.endswith("--local"):
                yield shlex.split(line, comments=True)


def test_documented_worker_commands_parse() -> None:
    found = list(commands())
    assert len(found) >= 3
    for _, *words in found:
        parser().parse_args(words)


def metrics() -> set[str]:
    """Every metric of workers and of the operator, as Prometheus stores them."""
    state = WorkerState(revision="", max_poll_interval_s=1.0, instance_id=None)
    state.breaker = lambda: BreakerSnapshot("Closed", 0.0, 0.0)
    state.retry = lambda: retry_document("main", None, {}, state.stats)
    text = metrics_page(state, GroupLabels("", "", "", ""), SystemClock())().decode() + Metrics().text().decode()
    found: set[str] = set()
    for name, kind in re.findall(r"^# TYPE (\S+) (\w+)$", text, re.MULTILINE):
        found |= {f"{name}_bucket", f"{name}_count", f"{name}_sum"} if kind == "histogram" else set()
        found.add(name)
    return found


def test_metrics_exist() -> None:
    name = re.compile(r"\b(consumer_fleet_[a-z_]+)\b")
    named = {found for text in MANUALS.values() for found in name.findall(text) if not found.endswith("_")}
    assert len(named) >= 10
    assert named <= metrics()


def has(schema: Mapping[str, Any], path: list[str]) -> bool:
    if not path:
        return True
    inner = schema.get("properties", {}).get(path[0])
    if inner is None:
        return False
    return has(inner.get("items", inner), path[1:])


def test_fields_exist() -> None:
    schemas = []
    for path in (ROOT / "crds").glob("*.yaml"):
        (version,) = yaml.safe_load(path.read_text())["spec"]["versions"]
        schemas.append(version["schema"]["openAPIV3Schema"])
    specs = [schema["properties"]["spec"] for schema in schemas if "spec" in schema["properties"]]
    heads = {head for spec in specs for head in spec["properties"]}
    for page, text in MANUALS.items():
        for name in quoted(text):
            # Names of files and of Secrets' keys, Kafka's settings that are times or about its own topic, and those of
            # Spark's history server.
            others = (".py", ".json", ".md", ".yaml", ".crt", ".key", ".ms", ".minutes")
            if not re.fullmatch(r"[a-z]\w*(\.[a-z]\w*)+", name) or name.endswith(others):
                continue
            if name.startswith(("offsets.topic.", "spark.history.")):
                continue
            whole = name.split(".")
            if page == "docs/library.md" and whole[0] in LIBRARY:
                assert hasattr(LIBRARY[whole[0]], whole[1]), f"{page}: {name}"
            elif whole[0] in ("spec", "status"):
                assert any(has(schema, whole) for schema in schemas), f"{page}: {name}"
            elif whole[0] in heads:
                assert any(has(spec, whole) for spec in specs), f"{page}: {name}"


def test_demo_page_shows_the_demos_output() -> None:
    lines = re.findall(r"^demo[:,].*$", PAGES["docs/demo.md"], re.MULTILINE)
    awaited = (ROOT / "e2e" / "test_demo.py").read_text()
    assert len(lines) == 4
    assert all(line.partition(": ")[2] in awaited for line in lines[:2])
    wanted, written = {"in": 26_865, "out": 26_865, "checksum": 1}, {"rows": 26_865, "distinct": 26_865, "checksum": 1}
    compared = {"equal": 328_521, "different": 0, "failedLiveOnly": 8_255, "failedCandidateOnly": 0}
    assert lines[2:] == [parquet_line(wanted, written), compared_line(compared)]


def test_documented_reasons_exist() -> None:
    """CamelCase words in backticks: reasons, conditions, Events, values of fields, classes."""
    code = "\n".join(
        path.read_text()
        for folder in SOURCES
        for path in (ROOT / folder).rglob("*")
        if path.suffix in (".py", ".yaml") and path.is_file()
    )
    known = set(re.findall(r"\b[A-Z]\w+\b", code))
    for page, text in MANUALS.items():
        if page.startswith("docs/decisions") or page == "docs/benchmarks.md":
            continue
        words = {name for name in quoted(text) if re.fullmatch(r"(?:[A-Z][a-z]+){2,}", name)}
        assert words - known - JAVA == set(), page


def _handlers_of_manifests() -> list[Any]:
    """The handlers that the pages show in ConfigMaps: what people copy first."""
    found = []
    for page, text in MANUALS.items():
        for block in re.findall(r"^```yaml\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
            if "handler.py: |" in block:
                maps = [each for each in yaml.safe_load_all(block) if each and each["kind"] == "ConfigMap"]
                found += [pytest.param(each["data"]["handler.py"], id=page) for each in maps]
    return found


@pytest.mark.parametrize("code", _handlers_of_manifests())
def test_handler_of_a_page_lives_through_tombstones(code: str) -> None:
    names: dict[str, Any] = {}
    exec(code, names)
    for value, wanted in ((None, None), (b"", (b"", "")), (b"one tea", (b"ONE TEA", "ONE TEAS"))):
        record = Record("orders", 0, 0, -1, b"key", value)
        output = names["handle"](record)
        assert output.value == wanted if wanted is None else output.value in wanted
