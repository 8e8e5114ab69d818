"""The process that answers the commands of a fleet's tools, and reads of objects without one."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from e2e.cluster import Cluster, CommandFailed
from e2e.demo import inside
from e2e.demo.tools import Tools
from e2e.direct import Direct

SERVE = [sys.executable, str(Path(inside.__file__)), "--bootstrap", "nowhere:1", "serve"]
DIES = [sys.executable, "-c", "import sys; sys.stdin.readline()"]
DIES_IN_A_LINE = [sys.executable, "-c", "import sys; sys.stdin.readline(); sys.stdout.write('{\"answer\": {')"]


def test_commands_of_one_thread_share_a_process_and_a_failed_one_leaves_it_running() -> None:
    tools = Tools(SERVE)
    with pytest.raises(CommandFailed, match="SystemExit: 2"):
        tools.ask(["no-such-command"], b"", 30.0)
    assert tools.ask(["--bootstrap", "nowhere:1", "write", "--topic", "t"], b"", 30.0) == {"written": 0}


@pytest.mark.parametrize("output", ["", '{"written": '])
def test_exec_whose_stream_was_cut_is_a_failed_command(tmp_path: Path, output: str) -> None:
    kubectl = tmp_path / "kubectl"
    kubectl.write_text(f"#!/bin/sh\nprintf '%s' '{output}'\n")
    kubectl.chmod(0o755)
    cluster = Cluster(kubectl, kubectl, tmp_path / "kubeconfig")
    with pytest.raises(CommandFailed, match="its output is not JSON"):
        cluster.kubectl_json("exec", "tools", "--", "python", "inside.py")


@pytest.mark.parametrize("command", [DIES, DIES_IN_A_LINE])
def test_process_that_has_ended_is_an_error_and_the_next_command_starts_another(command: list[str]) -> None:
    tools = Tools(command)
    for _ in range(2):
        with pytest.raises(CommandFailed, match="pod ended"):
            tools.ask(["read"], b"", 30.0)


@pytest.mark.parametrize(
    ("status", "body", "found"),
    [
        (200, {"kind": "Pod", "metadata": {"name": "a"}}, {"kind": "Pod", "metadata": {"name": "a"}}),
        (404, {"kind": "Status", "details": {"name": "a"}}, None),
    ],
)
def test_object_is_read_or_known_not_to_exist(
    monkeypatch: pytest.MonkeyPatch, status: int, body: dict[str, object], found: dict[str, object] | None
) -> None:
    monkeypatch.setattr(Direct, "_ask", lambda _self, path: (status, json.loads(json.dumps(body))))
    assert Direct("https://x", None).get("pods", "a", namespace="n") == found  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("kind", "status", "body"),
    [
        ("pods", 404, {"message": "404 page not found"}),
        ("pods", 403, {"kind": "Status", "details": {"name": "a"}}),
        ("widgets", 200, {}),
    ],
)
def test_kubectl_is_asked_about_whatever_else_the_server_answers(
    monkeypatch: pytest.MonkeyPatch, kind: str, status: int, body: dict[str, object]
) -> None:
    monkeypatch.setattr(Direct, "_ask", lambda _self, path: (status, body))
    with pytest.raises(LookupError):
        Direct("https://x", None).get(kind, "a", namespace="n")  # type: ignore[arg-type]
