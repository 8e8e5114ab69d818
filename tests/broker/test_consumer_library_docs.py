"""The page about the library: each of its examples runs, in order, against a real broker."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e.local_cluster.jars import ensure_kafka_jars
from e2e.local_cluster.kafka_node import find_java
from fleet_consumer import AsyncConsumer
from fleet_consumer.consumer import consumer
from fleet_consumer.librdkafka import settings as librdkafka
from tests.broker.members import create_topic, produce
from tests.support.kafka import KafkaBroker

PAGE = Path(__file__).parents[2] / "docs" / "library.md"
EXAMPLES = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
TITLES = re.findall(r"^## (.*)$", PAGE.read_text(), re.MULTILINE)

FOR_WORKERS = {"holds_session", "look_up_ends"}
"""Members of the consumer that the worker uses from other threads; applications have `end_offsets` and their own."""


@pytest.fixture(scope="module")
def shop() -> Iterator[KafkaBroker]:
    """A broker of its own: the page's topics have names that other pages use, too."""
    with KafkaBroker() as broker:
        create_topic(broker.bootstrap, 3, "orders")
        create_topic(broker.bootstrap, 1, "invoices")
        produce(broker.bootstrap, "orders", 3, 10)
        yield broker


@pytest.mark.parametrize("number", range(len(EXAMPLES)))
def test_example_of_the_library_page_runs(shop: KafkaBroker, number: int, tmp_path: Path) -> None:
    script = tmp_path / "example.py"
    script.write_text(EXAMPLES[number].replace("localhost:9092", shop.bootstrap))
    done = subprocess.run([sys.executable, "-W", "error", str(script)], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


def java(program: str, *arguments: str) -> str:
    """The output of one of the JDK's programs about Kafka's clients."""
    command = [str(find_java().with_name(program)), "-cp", f"{ensure_kafka_jars()}/*", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout


def named(title: str, column: int) -> set[str]:
    """The strings in backticks in a column of the table whose first column has this title."""
    table = re.search(rf"^\| {re.escape(title)} \|.*\n\|[-|]+\|\n((?:\|.*\n)+)", PAGE.read_text(), re.MULTILINE)
    assert table is not None, title
    return {name for row in table[1].splitlines() for name in re.findall(r"`([^`]+)`", row.split(" | ")[column])}


def test_every_method_of_javas_consumer_is_in_the_table() -> None:
    listed = java("javap", "-public", "org.apache.kafka.clients.consumer.KafkaConsumer")
    methods = set(re.findall(r" (\w+)\(", listed))
    assert {"poll", "currentLag", "close"} <= methods
    documented = {name.partition("(")[0].lstrip("| ") for name in named("Java", 0)}
    assert methods - documented == set()
    # Methods of other classes are named with their class.
    assert {name for name in documented - methods if "." not in name} == {"ConsumerPartitionAssignor"}


def test_every_setting_of_javas_consumer_is_in_the_table() -> None:
    page = java("java", "org.apache.kafka.clients.consumer.ConsumerConfig")
    settings = set(re.findall(r'id="consumerconfigs_([^"]+)"', page))
    assert {"group.id", "fetch.min.bytes"} <= settings
    documented = named("Java's setting", 0)
    unnamed = {
        name for name in settings if not any(re.fullmatch(each.replace(".*", "[.].*"), name) for each in documented)
    }
    assert unnamed == set()
    assert {each for each in documented if "*" not in each} - settings == set()


def test_properties_that_the_table_names_are_taken() -> None:
    names = {name for name in named("Java's setting", 1) if "." in name}
    assert names <= librdkafka.ALLOWED_PROPERTIES
    assert {"fetch.wait.max.ms", "socket.receive.buffer.bytes"} <= names


def test_asyncio_face_has_every_call_of_the_consumer() -> None:
    """All methods except the one named on the page and those for workers, by the same names and parameters."""
    for name, method in inspect.getmembers(consumer.Consumer, inspect.isfunction):
        if not name.startswith("_") and name != "commit_async" and name not in FOR_WORKERS:
            twin = getattr(AsyncConsumer, name)
            assert list(inspect.signature(twin).parameters) == list(inspect.signature(method).parameters), name


def test_page_names_every_public_method() -> None:
    page = PAGE.read_text()
    methods = [name for name in dir(consumer.Consumer) if not name.startswith("_")]
    assert [name for name in methods if name not in page and name not in FOR_WORKERS] == []
    assert len(EXAMPLES) >= 7
    assert "Errors" in TITLES
