"""Handlers of the gallery, called by the product's own code with the settings of their `group.yaml`."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import yaml

from fleet_consumer.handlers.loading import HandlerContext, load_handler
from fleet_consumer.handlers.performing import Outputs, Performer, Result, decoder
from fleet_consumer.record import Record
from fleet_consumer.retry.failure import Drop, Failure, Retry, classify
from fleet_consumer.worker.local.policy import parse_manifest
from tests.examples.gallery.packages import GALLERY
from tests.unit.retry.policies import policy

__all__ = ["Performed", "manifests", "performed", "record"]

CONTEXT = HandlerContext("shop", "gallery", "shop.gallery", "0", "gallery-0")
_offsets = itertools.count(1)


def manifests(name: str) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The RetryPolicy and the ConsumerGroups of an example."""
    retries, *groups = yaml.safe_load_all((GALLERY / name / "group.yaml").read_text())
    return retries, groups


class Performed:
    """One handler between its `setup` and its `teardown`."""

    def __init__(self, name: str, group: dict[str, Any], retries: dict[str, Any]) -> None:
        spec = group["spec"]["handler"]
        module, _, function = spec["python"]["callable"].partition(":")
        handler = load_handler(f"{name}.{module}:{function}", str(GALLERY))
        decode = spec.get("decode", {})
        self.policy = policy(*(content := dict(parse_manifest(retries).content)).pop("sequence"), **content)
        self._handler = handler
        self._runner = asyncio.Runner()
        self._performer = Performer(
            handler.call,
            batch=handler.batch,
            decode_key=decoder("key", decode.get("key", "Bytes")),
            decode_value=decoder("value", decode.get("value", "Bytes")),
            outputs=Outputs(spec.get("outputs", ())),
            timeout_s=spec.get("timeoutSeconds", 60),
        )

    def open(self) -> None:
        """Call `setup`."""
        try:
            self._run(self._handler.setup(CONTEXT))
        except BaseException:
            self._runner.close()
            raise

    def close(self) -> None:
        """Call `teardown`."""
        self._run(self._handler.teardown(CONTEXT))
        self._runner.close()

    def results(self, *records: Record) -> list[Result]:
        """The result of each record. The same record may be given again: the handler gets a copy."""
        copies = [replace(each) for each in records]
        if self._handler.asynchronous:
            return self._runner.run(self._performer.perform_async(copies))
        return self._performer.perform(copies)

    def outputs(self, *records: Record) -> list[tuple[str, Any]]:
        """Topic and value of each output of records that are done; values are parsed as JSON."""
        results = self.results(*records)
        assert [each.error for each in results if each.error] == []
        return [(each.topic, json.loads(each.value or b"null")) for result in results for each in result.produces]

    def verdicts(self, *records: Record) -> list[Retry | Failure | Drop | None]:
        """The verdict on each record by the example's RetryPolicy; None if the record is done."""
        errors = [each.error for each in self.results(*records)]
        return [None if error is None else classify(error, self.policy) for error in errors]

    def retried(self, *records: Record) -> list[float | None]:
        """The delay that each record asks for; None for the policy's next. Fails unless each is retried."""
        found = self.verdicts(*records)
        assert all(isinstance(each, Retry) for each in found), found
        return [each.after_s for each in found if isinstance(each, Retry)]

    def failed(self, one: Record) -> str:
        """The reason and the message with which a record goes to the failed topic."""
        (found,) = self.verdicts(one)
        assert isinstance(found, Failure), found
        return f"{found.reason}: {found.message}"

    def _run(self, answer: Any) -> None:
        if answer is not None:
            self._runner.run(answer)


@contextmanager
def performed(name: str, ordinal: int = 0) -> Iterator[Performed]:
    """The handler of an example's ConsumerGroup, set up."""
    retries, groups = manifests(name)
    handler = Performed(name, groups[ordinal], retries)
    handler.open()
    try:
        yield handler
    finally:
        handler.close()


def record(value: Any, key: bytes | None = b"k", *, headers: Sequence[tuple[str, bytes]] = (), **fields: Any) -> Record:
    """A record with a new offset; a value that is not bytes is written as JSON."""
    raw = value if isinstance(value, bytes | None) else json.dumps(value).encode()
    places = {"topic": "source", "partition": 3, "offset": next(_offsets), "timestamp": 1_700_000_000_000, **fields}
    return Record(key=key, value=raw, headers=headers, **places)
