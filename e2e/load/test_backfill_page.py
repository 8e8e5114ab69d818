"""docs/backfill.md, executed command by command for the fleet of the README."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from e2e.backfill_scene import BackfillScene, described_failure
from e2e.cluster import ROOT
from e2e.conftest import Fleets
from e2e.demo.backfill import Backfills, Lake, make_volume, remove_volume
from e2e.install import Installation
from e2e.local_cluster.access import foreign_kubeconfig
from e2e.local_cluster.images import SPARK, build_images
from e2e.reader import FENCE, Reader, commands, sections
from e2e.test_readme import examples

PAGE = "docs/backfill.md"
TITLES = (
    *(
        "Plan the size of a run",
        "Replay to a table",
        "Replay to a topic",
        "Change the speed, pause and resume",
        "Continue after a failure",
    ),
    *("Compare before you ship", "Inspect a run"),
)
BACKFILLS = ["orders-compare", "orders-delta", "orders-dry", "orders-sample", "orders-table", "orders-topic"]
ORDERS = b'{"item": "tea", "count": 2}\n{"item": "green tea", "count": 1}\n'
REPLAYED = "page-orders-replayed"
SPARK_IMAGE = "SPARK_IMAGE=registry.example.com/consumer-fleet-spark:0.3.0"


@pytest.mark.skipif(foreign_kubeconfig() is not None, reason="an image is built into the embedded cluster")
@pytest.mark.together("spark")
def test_reader_of_the_page_sizes_replays_and_compares(
    installation: Installation, fleets: Fleets, tmp_path: Path
) -> None:
    page = sections(PAGE)
    installation.install_spark_operator()
    build_images(SPARK)
    with fleets.named("backfill-page", topics=False) as fleet:
        fleet.name, fleet.source, fleet.output = "page-orders", "page-orders", "page-orders-done"
        fleet.group_id = f"{fleet.namespace}.{fleet.name}"
        fleet.make_topics()
        fleet.inside("create-topics", REPLAYED)
        orders = renamed(examples()[0])
        fleet.cluster.apply(orders, namespace=fleet.namespace)
        fleet.wait_stable(members=2)
        fleet.inside("write", "--topic", fleet.source, stdin=ORDERS)
        fleet.wait_drained()
        make_volume(fleet, installation.instance, "results")
        reader = Reader(installation.cluster, installation.instance, PAGE, tmp_path, in_clone=False)
        for file in tmp_path.glob("*.yaml"):
            file.write_text(renamed(file.read_text()))
        lake = Lake(fleet, installation.instance, image=installation.spark_image)
        outputs: dict[str, str] = {}
        try:
            with described_failure(BackfillScene(fleet, Backfills(fleet), lake, installation.spark_image)):
                for words in (words for title in TITLES for words in commands(page[title])):
                    here = ["--namespace", fleet.namespace] if words[0] == "kubectl" else []
                    built = {SPARK_IMAGE: f"SPARK_IMAGE={SPARK.tag}"}
                    outputs[" ".join(words)] = reader.types([words[0], *here, *words[1:]], instead=built)
                replayed = fleet.inside("read", "--topic", REPLAYED)["values"]
            written = files(installation, fleet.namespace)
        finally:
            reader.close()
            remove_volume(fleet, "results")
    check(outputs, page["Replay to a table"])
    assert sorted(replayed) == sorted(ORDERS.decode().upper().splitlines())
    assert len({name for name in written if name.startswith("orders/") and "/slice=" in name}) >= 1, written
    assert "delta/orders/_delta_log/00000000000000000001.json" in written, "the table exists, and has one commit"
    assert not [name for name in written if "_fleet/" in name], "nothing is left staged"


def check(outputs: dict[str, str], table: str) -> None:
    """The output of the commands."""
    assert outputs["kubectl get backfill orders-dry -o jsonpath={.status.offsetsTotal}"] == "2"
    estimate = json.loads(outputs["kubectl get backfill orders-sample -o jsonpath={.status.estimate}"])
    assert (estimate["records"], estimate["failed"]) == (2, 0), estimate
    head, row = outputs["kubectl get backfills orders-table"].splitlines()
    shown = next(line for line in table.splitlines() if line.startswith("NAME "))
    assert head.split() == shown.split()
    assert "Succeeded" in row, row
    compared = json.loads(outputs["kubectl get backfill orders-compare -o jsonpath={.status.comparison}"])
    assert (compared["equal"], compared["different"]) == (0, 2), compared
    assert {sample["live"] != sample["candidate"] for sample in compared["samples"]} == {True}
    rows = [line.split() for line in outputs["kubectl get backfills -o wide"].splitlines()[1:]]
    assert [(cells[0], cells[2]) for cells in rows] == [(name, "Succeeded") for name in BACKFILLS], rows
    (log,) = [text for command, text in outputs.items() if command.startswith("kubectl logs")]
    assert "backfill ends" in log


def files(installation: Installation, namespace: str) -> set[str]:
    """Names of the files on the page's volume."""
    folder = installation.instance.directory / "volumes" / namespace / "results"
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.suffix in (".parquet", ".json")}


def renamed(text: str) -> str:
    """The objects for a Kafka group of this test's own.

    The README's test runs `orders` at the same time, and the walkthrough searches for topics with that prefix.
    """
    for word in ("metadata: {name: orders}", "groupRef: {name: orders}", "topics: [orders]"):
        text = text.replace(word, word.replace("orders", "page-orders"))
    return text.replace("orders-done", "page-orders-done").replace("orders-replayed", REPLAYED)


def test_no_command_of_the_page_is_left_out() -> None:
    page = sections(PAGE)
    assert tuple(title for title, text in page.items() if commands(text)) == TITLES
    text = (ROOT / PAGE).read_text()
    assert text.count("```console") == [language for language, _ in FENCE.findall(text)].count("console")
