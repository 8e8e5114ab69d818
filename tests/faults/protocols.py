"""The assignors for fault tests: one of each protocol."""

from __future__ import annotations

PROTOCOLS = ("range", "cooperative-sticky")
