"""The cache under ``FLEET_HOME``: costly artifacts are made once for each version and then only read.

Several ``up``s may share one cache, and any of them may be killed at any moment. So an entry is a directory that is
created under another name and renamed when it is complete: an existing entry is complete. A file lock per entry keeps
two processes from making the same one; the kernel drops the lock when its holder dies, so nothing is ever stuck.
"""

import fcntl
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["cache_entry", "file_lock", "fleet_home"]


def fleet_home() -> Path:
    """The directory that holds the cache and the instances: ``FLEET_HOME``, else the user's cache directory."""
    explicit = os.environ.get("FLEET_HOME")
    if explicit:
        return Path(explicit).expanduser().absolute()
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser().absolute() / "consumer-fleet"


@contextmanager
def file_lock(path: Path, *, purpose: str) -> Iterator[None]:
    """Hold ``path`` exclusively; reports on standard error if another process holds it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    while True:
        # Opened close-on-exec (Python's default): a daemon started under the lock must not keep it.
        with path.open("a+") as handle:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                print(f"waiting for another process that is {purpose} ({path})", file=sys.stderr, flush=True)
                fcntl.flock(handle, fcntl.LOCK_EX)
            # A holder may have removed the file while we waited. Our lock is then useless: another process would
            # create the file again and lock that.
            if path.exists() and os.path.samestat(os.fstat(handle.fileno()), path.stat()):
                yield
                return


def cache_entry(directory: Path, make: Callable[[Path], None], *, purpose: str) -> Path:
    """Return ``directory``, calling ``make`` with an empty directory to fill if it does not exist yet."""
    if directory.is_dir():
        return directory
    with file_lock(directory.parent / f".{directory.name}.lock", purpose=purpose):
        if directory.is_dir():
            return directory
        prefix = f".{directory.name}.partial-"
        # Under the lock, a partial directory can only be from a killed process.
        for abandoned in directory.parent.glob(f"{prefix}*"):
            shutil.rmtree(abandoned, ignore_errors=True)
        partial = Path(tempfile.mkdtemp(prefix=prefix, dir=directory.parent))
        try:
            make(partial)
            partial.chmod(0o755)
            partial.rename(directory)
        except BaseException:
            shutil.rmtree(partial, ignore_errors=True)
            raise
    return directory
