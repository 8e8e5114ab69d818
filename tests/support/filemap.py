"""The file map at the end of DESIGN.md, made from the first sentence of each module's docstring.

`python -m tests.support.filemap` rewrites it; a test fails when it is out of date.
"""

from __future__ import annotations

import ast
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
HEADING = "## File map\n\n| File | Job |\n|---|---|\n"
MAPPED = ("consumer_image/*.py", "operator/*.py", "e2e/*.py", "bench/*.py", "tests/run.py", "tests/support/*.py")


def job(path: Path) -> str:
    """The first paragraph of a module's docstring, in one line."""
    words = ast.get_docstring(ast.parse(path.read_text())) or ""
    return words.split("\n\n")[0].replace("\n", " ")


def file_map() -> str:
    """The rows, one for each module that is not itself a test."""
    listed = subprocess.run(["git", "ls-files", *MAPPED], cwd=ROOT, check=True, capture_output=True, text=True)
    names = sorted(name for name in listed.stdout.split() if not Path(name).name.startswith(("test_", "__main__")))
    return "".join(f"| `{name}` | {job(ROOT / name)} |\n" for name in names if (ROOT / name).exists())


def with_map(design: str) -> str:
    """DESIGN.md with a fresh map."""
    return design.split(HEADING)[0] + HEADING + file_map()


if __name__ == "__main__":
    target = ROOT / "DESIGN.md"
    target.write_text(with_map(target.read_text()))
