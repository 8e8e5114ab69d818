"""docs/quickstart.md, typed line by line on a cluster without the operator.

Only the making of the cluster is replaced: `kind` by the second embedded cluster, `docker build` by its builder, and
the image apache/kafka by a stand-in. The minutes on the page are those that this test prints.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
import yaml

from e2e.cluster import ROOT, eventually
from e2e.conftest import ON_SECOND_CLUSTER
from e2e.install import Installation
from e2e.kafka_stand_in import write_stand_in
from e2e.local_cluster.cluster import LocalCluster
from e2e.reader import Reader, commands, sections
from e2e.test_walkthrough import bare

__all__ = ["bare"]

pytestmark = ON_SECOND_CLUSTER

PAGE: Final = "docs/quickstart.md"
EXAMPLE: Final = ROOT / "examples" / "quickstart"
MINUTES: Final = 10.0
"""Limit of the whole page, without the images."""
SHOWN_S: Final = 60.0


class Typing:
    """A reader of this page: `kind` does nothing but load images, and `<` gives a file to a command."""

    def __init__(self, installation: Installation, files: Path) -> None:
        self._cluster = installation.cluster
        self._reader = Reader(installation.cluster, installation.instance, PAGE, files, in_clone=True)
        self.place = ""

    def types(self, words: list[str]) -> str:
        if words[0] == "kind":
            return self._kind(words[1:])
        if "<" in words:
            *command, sign, file = words
            assert (command[0], sign) == ("kubectl", "<"), words
            return self._cluster.kubectl(*command[1:], stdin=(ROOT / file).read_bytes())
        return self._reader.types(words, instead={"0:0": self.place} if "show" in words else None)

    def close(self) -> None:
        self._reader.close()

    def _kind(self, words: list[str]) -> str:
        if words[0] == "load":
            assert (words[1], words[-2:]) == ("docker-image", ["--name", "quickstart"]), words
            for image in words[2:-2]:
                self._reader.types(["docker", "push", image])
        else:
            assert words in (
                ["create", "cluster", "--name", "quickstart"],
                ["delete", "cluster", "--name", "quickstart"],
            )
        return ""


@pytest.fixture
def typing(bare: Installation, tmp_path: Path) -> Iterator[Typing]:
    archive = tmp_path / "kafka.tar"
    write_stand_in(archive, kafka_image())
    LocalCluster(bare.instance).load_image(archive)
    reader = Typing(bare, tmp_path)
    try:
        yield reader
    finally:
        reader.close()
        for namespace in ("quickstart", "consumer-fleet"):
            bare.cluster.kubectl("delete", "namespace", namespace, "--ignore-not-found", "--wait=false")


def kafka_image() -> str:
    (broker,) = (
        body for body in yaml.safe_load_all((EXAMPLE / "kafka.yaml").read_text()) if body["kind"] == "StatefulSet"
    )
    (container,) = broker["spec"]["template"]["spec"]["containers"]
    return str(container["image"])


def shown_rows(section: str) -> list[list[str]]:
    """The rows of groups that a section shows, without their age."""
    return [line.split()[:-1] for line in section.splitlines() if line.startswith("orders  ")]


def rows(output: str) -> list[list[str]]:
    header, *found = (line.split() for line in output.splitlines())
    assert header[-1] == "AGE", output
    return [row[:-1] for row in found]


def test_quickstart_shows_what_the_page_shows(typing: Typing) -> None:
    page = sections(PAGE)
    started, spent = time.monotonic(), 0.0
    for title, text in page.items():
        outputs: dict[str, str] = {}
        began = time.monotonic()
        for words in commands(text):
            line = " ".join(words)
            outputs[line] = typing.types(words)
            if "failed list" in line:
                typing.place = see_failed(outputs[line])
            if " show " in line:
                assert "kr-error-class: ZeroDivisionError" in outputs[line]
            if words[-2:] == ["get", "consumergroups"]:
                wait_shown(typing, words, shown_rows(text))
            if "console-consumer" in line:
                assert sorted(outputs[line].splitlines()) == sorted(shown_orders(text))
        spent += 0.0 if title.startswith("Make a cluster") else time.monotonic() - began
        print(f"{time.monotonic() - began:6.0f} s  {title}")
    print(f"quickstart: {spent / 60:.1f} minutes without the images, {(time.monotonic() - started) / 60:.1f} with them")
    assert spent / 60 < MINUTES


def wait_shown(typing: Typing, words: list[str], wanted: list[list[str]]) -> None:
    """Repeat a command, as a user does, until it shows the rows of the page: the state in Kafka is some seconds old."""

    def shown() -> bool:
        output = typing.types(words)
        assert rows(output) == wanted, output
        return True

    eventually(shown, timeout_s=SHOWN_S, what=f"the table of {' '.join(words)}", poll_s=1.0)


def see_failed(listed: str) -> str:
    """The place of the first record of the list, in which the two orders without pieces are."""
    places = [line.split()[0] for line in listed.splitlines()]
    assert len(places) == 2, listed
    assert listed.count("ZeroDivisionError") == 2, listed
    return places[0]


def shown_orders(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.startswith('{"item": ')]
