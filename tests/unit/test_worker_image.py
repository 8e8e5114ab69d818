"""The worker's image puts the application behind the standard library."""

from __future__ import annotations

import re
import sysconfig
from pathlib import Path

import pytest

DOCKERFILE = (Path(__file__).parents[2] / "consumer_image" / "Dockerfile").read_text()


def test_application_s_folder_comes_after_python_s_own_modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With PYTHONPATH=/app an application's types.py stopped the worker before it had read its settings."""
    monkeypatch.setattr(sysconfig, "get_path", lambda name: str(tmp_path))
    assert not re.search(r"(?m)^ *(ENV +)?PYTHONPATH=", DOCKERFILE)
    (code,) = re.findall(r'^RUN /opt/fleet/bin/python -c "(.*)"$', DOCKERFILE, re.MULTILINE)
    exec(code, {})
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("zz-application.pth", "/app")]
