"""The rules of the house that a machine can check."""

from __future__ import annotations

import ast
import functools
import gc
import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FILE_LINES_MAX = 450
FUNCTION_LINES_MAX = 70
ARCHITECTURE_BYTES_MAX = 16_000
QUESTIONS = {"What", "Which", "How", "Whether", "Whose", "Where", "When", "Why", "Who"}


def tracked(pattern: str) -> list[Path]:
    listed = subprocess.run(["git", "ls-files", "-z", pattern], cwd=ROOT, check=True, capture_output=True, text=True)
    return [ROOT / name for name in listed.stdout.split("\0") if name and (ROOT / name).exists()]


@functools.cache
def syntax(path: Path) -> ast.Module:
    """The syntax tree of a module.

    The garbage collector waits meanwhile. CPython 3.11 cannot parse while it parses (gh-106905), and an object that is
    collected may log a traceback, for which the interpreter parses the lines that it shows.
    """
    gc.disable()
    try:
        return ast.parse(path.read_text())
    finally:
        gc.enable()


def test_folder_named_operator_is_no_package() -> None:
    """`operator/__init__.py` would shadow the standard library's `operator` for whoever runs from the checkout."""
    assert not (ROOT / "operator" / "__init__.py").exists()


def test_modules_stay_short() -> None:
    long = {str(path.relative_to(ROOT)): len(path.read_text().splitlines()) for path in tracked("*.py")}
    assert {name: lines for name, lines in long.items() if lines > FILE_LINES_MAX} == {}


def test_functions_fit_a_screen() -> None:
    long = {}
    for path in tracked("*.py"):
        for node in ast.walk(syntax(path)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                lines = (node.end_lineno or node.lineno) - node.lineno + 1
                if lines > FUNCTION_LINES_MAX:
                    long[f"{path.relative_to(ROOT)}:{node.name}"] = lines
    assert long == {}


def test_pure_packages_touch_no_clock_socket_thread_or_chance() -> None:
    """State machines, planners, assignors and codecs take time and input as arguments."""
    pure = (
        "consumer_image/fleet_consumer/contract",
        "consumer_image/fleet_consumer/wire",
        "consumer_image/fleet_consumer/assignors",
        "consumer_image/fleet_consumer/group",
        "consumer_image/fleet_consumer/retry",
        "operator/fleet_operator/planning",
        "operator/fleet_operator/console/views",
    )
    forbidden = {"time", "socket", "threading", "random", "asyncio", "selectors", "subprocess"}
    found = []
    for folder in pure:
        for path in (ROOT / folder).rglob("*.py"):
            for node in ast.walk(syntax(path)):
                names = []
                if isinstance(node, ast.Import):
                    names = [alias.name.split(".")[0] for alias in node.names]
                elif isinstance(node, ast.ImportFrom) and node.module:
                    names = [node.module.split(".")[0]]
                found += [f"{path.relative_to(ROOT)}: {name}" for name in names if name in forbidden]
    assert found == []


def test_every_module_says_what_it_is_for() -> None:
    modules = tracked("consumer_image/*.py") + tracked("operator/*.py")
    bad = [str(path.relative_to(ROOT)) for path in modules if not ast.get_docstring(syntax(path))]
    assert bad == []


def test_first_line_of_a_docstring_names_the_thing() -> None:
    """No question word opens it."""
    bad = []
    for path in tracked("*.py"):
        for node in ast.walk(syntax(path)):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                words = (ast.get_docstring(node) or "").split()
                if words and words[0] in QUESTIONS:
                    bad.append(f"{path.relative_to(ROOT)}:{node.body[0].lineno}: {' '.join(words[:6])}")
    assert bad == []


def test_architecture_is_short_enough_to_be_read() -> None:
    assert len((ROOT / "ARCHITECTURE.md").read_bytes()) <= ARCHITECTURE_BYTES_MAX


def test_architecture_names_files_and_definitions_that_exist() -> None:
    names = [path.as_posix() for path in tracked("*")]
    for found in re.findall(r"`([\w/.-]+\.py)(?::([\w.]+))?`", (ROOT / "ARCHITECTURE.md").read_text()):
        path, definition = found
        files = [name for name in names if name.endswith("/" + path)]
        assert files, f"{path} is not there"
        for part in filter(None, definition.split(".")):
            defined = re.compile(rf"^\s*(class|def|async def) {part}\b", re.MULTILINE)
            assert any(defined.search(Path(name).read_text()) for name in files), f"{path} does not define {definition}"


def test_every_make_target_is_documented() -> None:
    makefile = (ROOT / "Makefile").read_text()
    targets = re.findall(r"^([a-z][a-z-]*):(.*)$", makefile, flags=re.MULTILINE)
    assert [name for name, rest in targets if "## " not in rest] == []


def test_version_is_the_same_everywhere() -> None:
    version = re.search(r'^version = "([^"]+)"', (ROOT / "pyproject.toml").read_text(), flags=re.MULTILINE)
    assert version
    chart = (ROOT / "charts/consumer-fleet/Chart.yaml").read_text()
    assert f"version: {version[1]}" in chart
    assert re.search(rf"^appVersion: \"?{re.escape(version[1])}\"?$", chart, flags=re.MULTILINE)
    assert f"## {version[1]}" in (ROOT / "CHANGELOG.md").read_text()
