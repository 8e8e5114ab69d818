"""The page about handlers: its forms import and load, its HTTP headers, documents and answers are the code's."""

from __future__ import annotations

import inspect
import json
import re
from pathlib import Path
from typing import Any

import pytest

from fleet_consumer.handlers import http
from fleet_consumer.handlers.loading import load_handler
from fleet_consumer.record import Produce, Record, RetryAfter
from fleet_consumer.retry.failure import HttpStatus

PAGE = (Path(__file__).parents[3] / "docs" / "handlers.md").read_text()
EMPTY = Record("orders", 3, 7, 5, b"k", None, headers=[("trace", b"1")], attempt=1, first_failed_at=9)


def document(begins: str) -> str:
    """The document on the page that begins so."""
    (found,) = [text for text in re.findall(r"`(\{[^`]*\})`", PAGE) if text.startswith(begins)]
    return str(found)


def test_forms_of_the_page_load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (source,) = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    (tmp_path / "forms.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    for name, batch in (("handle", False), ("handle_batch", True)):
        assert load_handler(f"forms:{name}", str(tmp_path)).batch is batch
    module = load_handler("forms:handle", str(tmp_path))
    assert inspect.isfunction(module.call)


def test_headers_of_the_page_are_those_that_are_sent() -> None:
    rows = re.findall(r"^\| (`X-Kafka-.*?) \|", PAGE, re.MULTILINE)
    named = {f"X-Kafka-{name}" for row in rows for name in re.findall(r"`(?:X-Kafka)?-([A-Za-z-]+)`", row)}
    assert named == set(http._headers(EMPTY))


def test_batch_of_the_page_has_the_fields_that_are_sent() -> None:
    named = re.findall(r'"(\w+)"', document('{"records"'))
    assert named == ["records", *http._document(EMPTY)]


def test_answers_of_the_page_are_taken() -> None:
    done, failed, later = [http._result(each) for each in json.loads(document('{"results"'))["results"]]
    assert done == []
    assert isinstance(failed, HttpStatus)
    assert (failed.status, failed.final) == (422, True)
    assert isinstance(later, RetryAfter)
    assert later.seconds == 5
    outputs: list[dict[str, Any]] = json.loads(document('{"outputs"').replace("base64", "eA=="))["outputs"]
    assert http._outputs(outputs) == [Produce("…", b"x", b"x", [("name", b"x")])]
