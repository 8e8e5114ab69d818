"""A registry, by oras and cosign: both read logins of `docker login`, and certificate authorities of SSL_CERT_FILE.

Signatures are made with the given key alone: without a certificate, a transparency log, or a service of others. They
are stored next to what they sign.
"""

import os
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from e2e.local_cluster.gomodules import GoPrograms, ensure_programs
from release.errors import ReleaseError
from release.programs import COSIGN, ORAS
from release.version import environment

__all__ = ["Registry", "layout_digest", "push_to_layout", "sign_file", "verify_file", "write_public_key"]

OFFLINE = ("--use-signing-config=false", "--tlog-upload=false", "--yes")
"""For cosign: no service of Sigstore is asked, and nothing is published there."""
REFUSED = re.compile(r"unauthorized|authentication required|denied|forbidden|\b40[13]\b", re.IGNORECASE)
UNTRUSTED = re.compile(r"x509: |certificate signed by unknown authority|failed to verify certificate")
UNREACHABLE = re.compile(r"connection refused|no such host|timeout|network is unreachable")
MISSING = re.compile(
    r"^Error response from registry: .*(?:: not found$|(?:manifest|name)[ _]unknown)", re.IGNORECASE | re.MULTILINE
)
"""The registry's answer, as oras prints it. Other things are not found either, such as a program for logins."""


@dataclass(frozen=True, slots=True)
class Registry:
    """A host with an optional path, below which each artefact has a repository."""

    name: str

    def reference(self, repository: str, version: str) -> str:
        """Name of an artefact by tag, or by digest."""
        return f"{self.name}/{repository}{'@' if ':' in version else ':'}{version}"

    def digest(self, repository: str, version: str) -> str | None:
        """The digest of a tag; None if the registry has no such tag. Raises ReleaseError as `push` does."""
        try:
            return self._oras("resolve", self.reference(repository, version)).strip()
        except ReleaseError as error:
            if error.reason == "NotFound":
                return None
            raise

    def push(self, layout: Path, repository: str, version: str) -> str:
        """Copy an artefact from its layout, unless the registry has it; returns its digest.

        Raises ReleaseError (``AlreadyPublished`` for other content under the same tag, ``LoginFailed``, ``Untrusted``,
        ``Unreachable``, ``RegistryFailed``).
        """
        wanted = layout_digest(layout, version)
        there = self.digest(repository, version)
        if there is not None and there != wanted:
            raise ReleaseError(
                "AlreadyPublished",
                f"{self.reference(repository, version)} is {there}, and this build's is {wanted}; a published version "
                "never changes: publish the build that was published before, or raise the version",
            )
        if there is None:
            self._oras("cp", "--from-oci-layout", f"{layout}:{version}", self.reference(repository, version))
        return wanted

    def pull(self, repository: str, digest: str, into: Path) -> None:
        """Write an artefact's files to a folder; each is checked against its digest. Raises ReleaseError."""
        self._oras("pull", "--output", str(into), self.reference(repository, digest))

    def sign(self, repository: str, digest: str, key: str, public_key: str) -> bool:
        """Sign an artefact, unless this key has signed it; True if it was signed now.

        Raises ReleaseError (``SigningFailed``).
        """
        try:
            self.verify(repository, digest, public_key)
        except ReleaseError:
            words = ["sign", *OFFLINE, "--key", key, self.reference(repository, digest)]
            _run(COSIGN, words, reason="SigningFailed")
            return True
        return False

    def verify(self, repository: str, digest: str, public_key: str) -> None:
        """Check that the key signed an artefact. Raises ReleaseError (``NotSigned``)."""
        words = ["verify", "--insecure-ignore-tlog=true", "--key", public_key, self.reference(repository, digest)]
        _run(COSIGN, words, reason="NotSigned")

    def _oras(self, *words: str) -> str:
        try:
            return _run(ORAS, words, reason="RegistryFailed")
        except ReleaseError as error:
            raise _named(self.name, error) from error


def push_to_layout(layout: Path, version: str, files: Mapping[str, str], options: Sequence[str], folder: Path) -> None:
    """Write an artefact of files (media type by name, below `folder`) to a new OCI layout. Raises ReleaseError."""
    shutil.rmtree(layout, ignore_errors=True)
    named = [f"{name}:{media_type}" for name, media_type in files.items()]
    words = ["push", "--oci-layout", f"{layout}:{version}", *options, *named]
    _run(ORAS, words, reason="PackFailed", folder=folder)


def layout_digest(layout: Path, version: str) -> str:
    """The digest of a tag in an OCI layout. Raises ReleaseError (``PackFailed``)."""
    return _run(ORAS, ["resolve", "--oci-layout", f"{layout}:{version}"], reason="PackFailed").strip()


def sign_file(file: Path, bundle: Path, key: str) -> None:
    """Sign a file; the signature is in the bundle. Raises ReleaseError (``SigningFailed``)."""
    _run(COSIGN, ["sign-blob", *OFFLINE, "--key", key, "--bundle", str(bundle), str(file)], reason="SigningFailed")


def write_public_key(key: str, file: Path) -> None:
    """Write the public key of a private one. Raises ReleaseError (``SigningFailed``)."""
    _run(COSIGN, ["public-key", "--key", key, "--outfile", str(file)], reason="SigningFailed")


def verify_file(file: Path, bundle: Path, public_key: str) -> None:
    """Check a file's signature. Raises ReleaseError (``NotSigned``)."""
    words = ["verify-blob", "--insecure-ignore-tlog=true", "--key", public_key, "--bundle", str(bundle), str(file)]
    _run(COSIGN, words, reason="NotSigned")


def _run(program: GoPrograms, words: Sequence[str], *, reason: str, folder: Path | None = None) -> str:
    path = ensure_programs(program) / program.name
    # A key's password comes from COSIGN_PASSWORD; without it cosign would ask a terminal that is not there.
    done = subprocess.run(
        [path, *words],
        cwd=folder,
        env={"COSIGN_PASSWORD": "", **os.environ} if program is COSIGN else environment(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise ReleaseError(reason, f"`{program.name} {' '.join(words)}`:\n{done.stderr.strip()[-2000:]}")
    return done.stdout


def _named(registry: str, error: ReleaseError) -> ReleaseError:
    """The error by its cause, with what to do."""
    host = registry.partition("/")[0]
    for pattern, reason, remedy in (
        (MISSING, "NotFound", "check name and version"),
        (UNTRUSTED, "Untrusted", "set SSL_CERT_FILE to a file with the authority of the registry's certificate"),
        (REFUSED, "LoginFailed", f"log in with `docker login {host}`, or `oras login {host}`, as a user that may push"),
        (UNREACHABLE, "Unreachable", "check its name and the network"),
    ):
        if pattern.search(error.message):
            return ReleaseError(reason, f"registry {registry}: {remedy}. {error.message}")
    return error
