"""`fleet-consumer run` as somebody starts it in a terminal: no pod, output to be read."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.broker.workers import COMMAND


@contextmanager
def running(folder: Path, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """The command with these arguments in `folder`, whose `err.txt` takes what it says and which holds its
    temporary files too; killed in the end."""
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
