"""`fleet-consumer run` as a user starts it in a terminal: no pod, readable output."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.broker.workers import COMMAND


@contextmanager
def running(folder: Path, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """Run the command with these arguments in `folder` until the block ends.

    The folder's `err.txt` takes standard error; temporary files are in the folder too.
    """
    environment = {name: value for name, value in os.environ.items() if name != "POD_NAME"} | {"TMPDIR": str(folder)}
    with (folder / "err.txt").open("w") as errors:
        process = subprocess.Popen(
            [COMMAND, "run", *arguments],
            cwd=folder,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            env=environment,
            start_new_session=True,
        )
    try:
        yield process
    except BaseException:
        print((folder / "err.txt").read_text())
        raise
    finally:
        process.kill()
        process.communicate()
