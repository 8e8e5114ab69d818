"""Times as Kubernetes writes them. Pure."""

from __future__ import annotations

from datetime import UTC, datetime


def rfc3339(wall: float) -> str:
    """Unix seconds as `metav1.Time`: whole seconds, UTC."""
    return datetime.fromtimestamp(wall, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def rfc3339_micro(wall: float) -> str:
    """Unix seconds as `metav1.MicroTime`: six digits of fraction, UTC."""
    return datetime.fromtimestamp(wall, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
