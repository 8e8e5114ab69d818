"""Certificate files that are replaced at run time, as in mounted Secrets.

Decision: docs/decisions/0035-credentials-of-others.md.
"""

import os
import ssl
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from fleet_consumer.contract.brokers import certificates, matching_files

OWN_FILES: Final = "/proc/self/fd"
"""Linux's directory of this process's open files."""

Stamps = tuple[tuple[int, int, int] | None, ...]


def stamps_of(paths: Iterable[str]) -> Stamps:
    """Return a stamp of each file, which changes with the file's content; None for a file that cannot be read.

    Links are followed, because the kubelet renews a mounted Secret by pointing one link to a new folder. A path with an
    asterisk means all files that match the pattern.
    """

    def stamp(path: str) -> tuple[int, int, int] | None:
        try:
            found = os.stat(path)
        except OSError:
            return None
        return found.st_ino, found.st_mtime_ns, found.st_size

    return tuple(stamp(file) for path in paths for file in (_matching(path) if has_asterisk(path) else [path]))


def has_asterisk(path: str) -> bool:
    """True if the file name in the path has an asterisk, which makes the path a pattern for several files of the
    folder."""
    return "*" in os.path.basename(path)


def authorities(path: str) -> str:
    """Return the readable PEM certificates of a file, or of all files that match a path with an asterisk. Raises
    OSError. Raises ValueError if no certificate is readable."""
    files = _matching(path) if has_asterisk(path) else [path]
    found = readable_certificates(Path(file).read_bytes() for file in files)
    if not found:
        what = f"no file that matches {path} holds a" if has_asterisk(path) else f"{path} holds no"
        raise ValueError(f"{what} PEM certificate that can be read")
    return found


def chain(path: str) -> str:
    """Return the PEM certificates in a client's file: the client's own, then CA certificates. Raises OSError. Raises
    ValueError if the file has no certificate."""
    found = "".join(certificates([Path(path).read_bytes()]))
    if not found:
        raise ValueError(f"{path} holds no PEM certificate")
    return found


def load_client(context: ssl.SSLContext, certificates: str, key_file: str) -> None:
    """Load the client's certificates into a context. Raises OSError (ssl.SSLError) if the key cannot be used."""
    with _as_file(certificates) as path:
        # Without the callback, OpenSSL would ask for the passphrase of an encrypted key on the terminal.
        context.load_cert_chain(path, key_file, password=lambda: "")


@contextmanager
def _as_file(text: str) -> Iterator[str]:
    """Yield the path of a temporary file with this content, because OpenSSL needs a path here. Where the system
    supports memory files, the file is in memory, so that a full disk does not prevent connections."""
    memory = _in_memory(text.encode())
    if memory is not None:
        try:
            yield f"{OWN_FILES}/{memory}"
        finally:
            os.close(memory)
        return
    with tempfile.TemporaryDirectory(prefix="fleet-chain-") as folder:
        file = Path(folder, "chain.pem")
        file.write_text(text)  # also closes the file, which OpenSSL could not open on Windows otherwise
        yield str(file)


def _in_memory(data: bytes) -> int | None:
    """Return the descriptor of a memory file that can be opened by path; None if the system or sandbox does not support
    such files."""
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


def readable_certificates(contents: Iterable[bytes]) -> str:
    """Return the PEM certificates in the contents that OpenSSL can read, in order. Unreadable certificates are dropped,
    because OpenSSL would refuse the whole list."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    return "".join(each for each in certificates(contents) if _readable(context, each))


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
    def __init__(self, paths: Iterable[str]) -> None:
        self._paths = tuple(paths)
        self._used = self._seen = stamps_of(self._paths)

    def changed(self) -> bool:
        """True if the files have changed since the last call to `used`."""
        self._seen = stamps_of(self._paths)
        return self._seen != self._used

    def used(self) -> None:
        """Record that the files are used with the content that the last call to `changed` saw. Only later changes count
        from now on."""
        self._used = self._seen
