"""The commands of a run, printed as a user would type them in the clone, and run."""

from __future__ import annotations

import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from e2e.cluster import ROOT

TIMEOUT_S: Final = 150.0
"""Timeout of one command, far above its usual seconds."""


class Failed(Exception):
    """A step of the run did not succeed; the message has the cause and what to do."""


def program(name: str) -> str:
    """The path of a program of this virtual environment, relative to the clone if it is inside."""
    path = Path(sys.executable).parent / name
    return str(path.relative_to(ROOT)) if path.is_relative_to(ROOT) else str(path)


def shown(words: Sequence[str], *, stdin: Path | None = None) -> str:
    """A command as a line for a shell."""
    return shlex.join(words) + (f" < {shlex.quote(str(stdin))}" if stdin else "")


def type_command(words: Sequence[str], *, stdin: Path | None = None) -> str:
    """Print a command, run it in the clone and return what it prints. Raises Failed with its exit code."""
    line = shown(words, stdin=stdin)
    print(f"\n$ {line}", flush=True)
    given = stdin.open("rb") if stdin else None
    try:
        done = subprocess.run(
            words,
            cwd=ROOT,
            stdin=given or subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise Failed(f"`{line}` did not end within {TIMEOUT_S:.0f} s; run `make try` again") from error
    finally:
        if given:
            given.close()
    print(done.stdout, end="", flush=True)
    if done.returncode != 0:
        raise Failed(f"`{line}` ended with exit code {done.returncode}; its message is above")
    return done.stdout
