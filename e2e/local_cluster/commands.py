"""Running other programs: quiet on success, with the end of their output on failure."""

import os
import shlex
import subprocess
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from e2e.local_cluster.errors import ClusterError

__all__ = ["output", "run", "stream"]

# Enough for an error of a compiler or a package tool, and short enough to read.
LAST_WORDS_LINES = 25


def run(
    argv: Sequence[str | Path],
    *,
    reason: str = "CommandFailed",
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    stdin: str | None = None,
    timeout_s: float | None = None,
) -> str:
    """Run a command to its end and return its standard output.

    Raises ClusterError(``reason``) with the end of its output when it exits non-zero, cannot be started, or lasts
    longer than ``timeout_s``.
    """
    words = [str(word) for word in argv]
    try:
        done = subprocess.run(
            words,
            cwd=cwd,
            env=dict(env) if env is not None else None,
            input=stdin,
            stdin=subprocess.DEVNULL if stdin is None else None,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout_s,
            check=False,
        )
    except OSError as error:
        raise ClusterError(reason, f"cannot start `{words[0]}`: {error.strerror}") from error
    except subprocess.TimeoutExpired as error:
        raise ClusterError(reason, f"`{shlex.join(words)}` did not end within {timeout_s:.0f} s") from error
    if done.returncode != 0:
        raise ClusterError(reason, _complaint(words, done.returncode, (done.stderr + done.stdout).splitlines()))
    return done.stdout


def output(argv: Sequence[str | Path]) -> str | None:
    """Standard output of a command; None if it fails."""
    try:
        return run(argv)
    except ClusterError:
        return None


def stream(
    argv: Sequence[str | Path],
    *,
    log: Path,
    on_line: Callable[[str], None],
    reason: str,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
) -> None:
    """Run a long command, giving each line of its output to ``on_line`` and to the file ``log``.

    Raises ClusterError(``reason``) with the last lines and the log's path when it fails. The command does not outlive
    an interruption of the caller.
    """
    words = [str(word) for word in argv]
    last: deque[str] = deque(maxlen=LAST_WORDS_LINES)
    log.parent.mkdir(parents=True, exist_ok=True)
    with (
        log.open("w") as copy,
        subprocess.Popen(
            words,
            cwd=cwd,
            env={**os.environ, **env} if env is not None else None,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        ) as process,
    ):
        assert process.stdout is not None
        try:
            for line in process.stdout:
                copy.write(line)
                last.append(line.rstrip())
                on_line(line.rstrip())
        except BaseException:
            process.kill()
            raise
        status = process.wait()
    if status != 0:
        raise ClusterError(reason, f"{_complaint(words, status, list(last))}\nthe whole output is in {log}")


def _complaint(words: Sequence[str], status: int, lines: Sequence[str]) -> str:
    tail = "\n".join(f"  {line}" for line in lines[-LAST_WORDS_LINES:])
    return f"`{shlex.join(words)}` exited with {status}\n{tail}".rstrip()
