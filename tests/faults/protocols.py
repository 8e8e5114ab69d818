"""The assignors under which faults are tried: one of each protocol."""

from __future__ import annotations

PROTOCOLS = ("range", "cooperative-sticky")
