"""Health of an object as Argo CD computes it: by the chart's scripts, in Lua 5.1 with the libraries that Argo CD opens.

Scripts in `argocd-cm` run with the base, `table` and `package` libraries only (`util/lua/lua.go` of Argo CD), so
`string`, `math` and methods of strings are removed here too.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from lupa.lua51 import LuaRuntime

SCRIPTS: Final = Path(__file__).resolve().parents[2] / "charts" / "consumer-fleet" / "argocd" / "consumerfleet.io"
CODES: Final = frozenset({"Healthy", "Progressing", "Degraded", "Suspended"})
CLOSED: Final = """
getmetatable("").__index = nil
string, math, io, os, debug, coroutine, python = nil, nil, nil, nil, nil, nil, nil
"""


class Health(NamedTuple):
    """Status and message, as Argo CD shows them next to an object."""

    status: str
    message: str


def health(body: Mapping[str, Any]) -> Health:
    """The health of an object by its kind's script. Raises LuaError, and AssertionError if Argo CD would refuse it."""
    runtime = LuaRuntime(register_eval=False, register_builtins=False)
    runtime.execute(CLOSED)
    runtime.globals()["obj"] = to_lua(runtime, body)
    answer = runtime.execute((SCRIPTS / body["kind"] / "health.lua").read_text())
    found = dict(answer.items())
    assert found.keys() == {"status", "message"}, found
    assert found["status"] in CODES, found
    assert isinstance(found["message"], str), found
    assert found["message"], found
    return Health(found["status"], found["message"])


def to_lua(runtime: Any, value: Any) -> Any:
    """A JSON value as Argo CD passes it to a script: tables, and nil for null."""
    if isinstance(value, Mapping):
        return runtime.table_from({key: to_lua(runtime, inner) for key, inner in value.items() if inner is not None})
    if isinstance(value, list | tuple):
        return runtime.table_from([to_lua(runtime, inner) for inner in value])
    return value
