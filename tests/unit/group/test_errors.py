"""Reason words of errors."""

from __future__ import annotations

from fleet_consumer.group.errors import ConsumerError
from fleet_consumer.net import NetError


def test_reason_is_the_class_name_unless_the_class_gives_one() -> None:
    class SchemaMissing(ConsumerError):
        """Of an application."""

    class SchemaRefused(ConsumerError):
        reason = "Refused"

    class ProxyFailed(NetError):
        reason = "Proxy"

    assert [SchemaMissing.reason, SchemaRefused.reason, ProxyFailed.reason] == ["SchemaMissing", "Refused", "Proxy"]
