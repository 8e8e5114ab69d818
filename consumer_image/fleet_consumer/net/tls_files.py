"""Certificate files that are replaced at run time, as mounted Secrets are."""

from __future__ import annotations

import os
import ssl
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from fleet_consumer.contract.brokers import certificates, matching_files

OWN_FILES: Final = "/proc/self/fd"
"""Linux' folder of the files that this process has open."""

Stamps = tuple[tuple[int, int, int] | None, ...]


def stamps_of(paths: Iterable[str]) -> Stamps:
    """A stamp of each file's content without reading it; None for a file that cannot be read.

    Links are followed: the kubelet renews a mounted Secret by pointing one link to a new folder. A path with an
    asterisk stands for all files that match it.
    """

    def stamp(path: str) -> tuple[int, int, int] | None:
        try:
            found = os.stat(path)
        except OSError:
            return None
        return found.st_ino, found.st_mtime_ns, found.st_size

    return tuple(stamp(file) for path in paths for file in (_matching(path) if has_asterisk(path) else [path]))


def has_asterisk(path: str) -> bool:
    """True if the name of a file stands for all files of its folder that match it."""
    return "*" in os.path.basename(path)


def authorities(path: str) -> str:
    """The certificates of a file, or of all files that match a path with an asterisk.

    Raises OSError, and ValueError for none.
    """
    files = _matching(path) if has_asterisk(path) else [path]
    found = readable_certificates(Path(file).read_bytes() for file in files)
    if not found:
        what = f"no file that matches {path} holds a" if has_asterisk(path) else f"{path} holds no"
        raise ValueError(f"{what} PEM certificate that can be read")
    return found


def chain(path: str) -> str:
    """The certificates of a client, its own first. Raises OSError, and ValueError for none."""
    found = "".join(certificates([Path(path).read_bytes()]))
    if not found:
        raise ValueError(f"{path} holds no PEM certificate")
    return found


def load_client(context: ssl.SSLContext, certificates: str, key_file: str) -> None:
    """Have a context present these certificates. Raises OSError (ssl.SSLError) for a key that cannot be used."""
    with _as_file(certificates) as path:
        # Without the callback, OpenSSL would ask for the passphrase of an encrypted key on the terminal.
        context.load_cert_chain(path, key_file, password=lambda: "")


@contextmanager
def _as_file(text: str) -> Iterator[str]:
    """A path at which OpenSSL, which takes no text here, can read it: in memory, so that a full disk keeps nobody from
    a connection; on systems without such files, and in sandboxes, on disk."""
    memory = _in_memory(text.encode())
    if memory is not None:
        try:
            yield f"{OWN_FILES}/{memory}"
        finally:
            os.close(memory)
        return
    with tempfile.TemporaryDirectory(prefix="fleet-chain-") as folder:
        file = Path(folder, "chain.pem")
        file.write_text(text)  # and closed: Windows opens no file twice
        yield str(file)


def _in_memory(data: bytes) -> int | None:
    """The descriptor of a file in memory that can be opened by its path; None where there is no such thing."""
    if not hasattr(os, "memfd_create"):
        return None
    try:
        memory = os.memfd_create("fleet-chain")
    except OSError:
        return None
    with suppress(OSError):
        with open(memory, "wb", closefd=False) as file:
            file.write(data)
        if os.path.exists(f"{OWN_FILES}/{memory}"):
            return memory
    os.close(memory)
    return None


def readable_certificates(texts: Iterable[bytes]) -> str:
    """The PEM certificates of some texts that OpenSSL can read, in order; empty without any.

    A single one that it cannot read would keep it from all others.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    return "".join(each for each in certificates(texts) if _readable(context, each))


def _readable(context: ssl.SSLContext, certificate: str) -> bool:
    try:
        context.load_verify_locations(cadata=certificate)
    except (OSError, ValueError):
        return False
    return True


def _matching(path: str) -> list[str]:
    folder, pattern = os.path.split(path)
    try:
        names = os.listdir(folder or ".")
    except OSError:
        return []
    return [os.path.join(folder, name) for name in matching_files(names, pattern)]


class FileWatch:
    """Detection of changed files."""

    def __init__(self, paths: Iterable[str]) -> None:
        self._paths = tuple(paths)
        self._used = self._seen = stamps_of(self._paths)

    def changed(self) -> bool:
        """True if the files have changed since they were last used; stays True until `used`."""
        self._seen = stamps_of(self._paths)
        return self._seen != self._used

    def used(self) -> None:
        """Mark the files seen by the last `changed` as used; any later change counts as new."""
        self._used = self._seen
