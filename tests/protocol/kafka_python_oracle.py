"""kafka-python's codec, compiled from Kafka's schemas at run time: our messages in its classes, and its bytes."""

from __future__ import annotations

import importlib
import warnings
from typing import Any

from fleet_consumer.wire.message import Message
from fleet_consumer.wire.schema import ZERO_UUID

with warnings.catch_warnings():
    # At import it reads its schemas with a function that Python 3.11 has deprecated.
    warnings.simplefilter("ignore", DeprecationWarning)
    MODULES = [importlib.import_module(f"kafka.protocol.{name}") for name in ("admin", "consumer", "metadata", "sasl")]


def kafka_python_class(cls: type[Message]) -> Any:
    """Its class of the same name."""
    for module in MODULES:
        found = getattr(module, cls.__name__, None)
        if found is not None:
            return found
    raise LookupError(f"kafka-python has no {cls.__name__}")


def to_kafka_python(ours: Any, target: Any, version: int) -> Any:
    """The same message in its class."""
    values = {}
    for name, field in target._struct.fields.items():
        if not field.for_version_q(version):
            continue
        value = getattr(ours, _our_name(ours, name))
        if field.is_struct_array() and value is not None:
            value = [to_kafka_python(item, field.data_class, version) for item in value]
        elif isinstance(value, tuple):
            value = list(value)
        elif value == ZERO_UUID:
            value = None
        elif name.endswith("authorized_operations") and not isinstance(value, bool):
            value = _bits(value)
        values[name] = value
    return target(version=version, **values)


def _our_name(ours: Any, theirs: str) -> str:
    """It renames the bit fields of Metadata."""
    if theirs != "authorized_operations" or hasattr(ours, theirs):
        return theirs
    return "cluster_authorized_operations" if hasattr(ours, "cluster_id") else "topic_authorized_operations"


def _bits(number: int) -> set[int] | None:
    """It shows a bit field as the set of its bits, and Kafka's "not asked for", the smallest integer, as None."""
    found = {bit for bit in range(32) if number >> bit & 1}
    return None if found == {31} else found
