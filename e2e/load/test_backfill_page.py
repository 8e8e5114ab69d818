"""docs/backfill.md, typed command by command for the fleet of the README."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from e2e.backfill_scene import BackfillScene, described_failure
from e2e.cluster import ROOT
from e2e.conftest import Fleets
from e2e.demo.backfill import Backfills, Lake, make_volume, remove_volume
from e2e.install import Installation
from e2e.reader import Reader, commands, sections
from e2e.test_readme import examples

PAGE = "docs/backfill.md"
TITLES = ("Run one", "Faster, slower, not now", "Go on after a failure", "Compare before you ship")


@pytest.mark.together("spark")
def test_reader_of_the_page_runs_a_backfill_and_a_comparison(
    installation: Installation, fleets: Fleets, tmp_path: Path
) -> None:
    page = sections(PAGE)
    installation.install_spark_operator()
    with fleets.named("backfill-page", topics=False) as fleet:
        fleet.name, fleet.source, fleet.output = "page-orders", "page-orders", "page-orders-done"
        fleet.group_id = f"{fleet.namespace}.{fleet.name}"
        fleet.make_topics()
        orders = renamed(examples()[0])
        fleet.cluster.apply(orders, namespace=fleet.namespace)
        fleet.wait_stable(members=2)
        fleet.inside("write", "--topic", fleet.source, stdin=b"one tea\ntwo teas\n")
        fleet.wait_drained()
        make_volume(fleet, installation.instance, "results")
        reader = Reader(installation.cluster, installation.instance, PAGE, tmp_path, in_clone=False)
        for file in tmp_path.glob("*.yaml"):
            file.write_text(renamed(file.read_text()))
        lake = Lake(fleet, installation.instance, image=installation.spark_image)
        try:
            with described_failure(BackfillScene(fleet, Backfills(fleet), lake, installation.spark_image)):
                outputs = [
                    reader.types([words[0], "--namespace", fleet.namespace, *words[1:]])
                    for title in TITLES
                    for words in commands(page[title])
                ]
        finally:
            reader.close()
            remove_volume(fleet, "results")
        assert outputs[2] == "2", "the dry run counts both orders"
        table, row = outputs[6].splitlines()[0].split(), outputs[6].splitlines()[-1]
        shown = next(line for line in page["Run one"].splitlines() if line.startswith("NAME ")).split()
        assert table == shown
        assert "Succeeded" in row, outputs[6]
        compared = json.loads(outputs[-1])
        assert (compared["equal"], compared["different"]) == (0, 2), compared
        assert {sample["live"] != sample["candidate"] for sample in compared["samples"]} == {True}


def renamed(text: str) -> str:
    """The objects for a Kafka group of this test's own.

    The README's test runs `orders` beside it, and the walkthrough looks for topics that begin so.
    """
    for word in ("metadata: {name: orders}", "groupRef: {name: orders}", "topics: [orders]"):
        text = text.replace(word, word.replace("orders", "page-orders"))
    return text.replace("orders-done", "page-orders-done")


def test_no_command_of_the_page_is_left_out() -> None:
    page = sections(PAGE)
    assert tuple(title for title, text in page.items() if commands(text)) == TITLES
    assert (ROOT / PAGE).read_text().count("```console") == len(TITLES)
