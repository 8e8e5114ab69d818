"""The page about the library: each of its examples runs, in order, against a real broker."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from fleet_consumer import consumer
from tests.broker.members import create_topic, produce
from tests.support.kafka import KafkaBroker

PAGE = Path(__file__).parents[2] / "docs" / "library.md"
EXAMPLES = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
TITLES = re.findall(r"^## (.*)$", PAGE.read_text(), re.MULTILINE)


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


def test_page_names_every_public_method() -> None:
    page = PAGE.read_text()
    methods = [name for name in dir(consumer.Consumer) if not name.startswith("_")]
    assert [name for name in methods if name not in page and name != "holds_session"] == []
    assert len(EXAMPLES) >= 7
    assert "Errors" in TITLES
