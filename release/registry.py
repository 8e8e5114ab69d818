"""Access to a registry with oras and cosign. Both use the logins of `docker login` and the CAs in SSL_CERT_FILE.

Signatures are made with the given key only, without a certificate, a transparency log or an external service. A
signature is stored in the same repository as the signed artefact.
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
"""Options of cosign: use no service of Sigstore, and publish nothing there."""
REFUSED = re.compile(r"unauthorized|authentication required|denied|forbidden|\b40[13]\b", re.IGNORECASE)
UNTRUSTED = re.compile(r"x509: |certificate signed by unknown authority|failed to verify certificate")
UNREACHABLE = re.compile(r"connection refused|no such host|timeout|network is unreachable")
MISSING = re.compile(
    r"^Error response from registry: .*(?:: not found$|(?:manifest|name)[ _]unknown)", re.IGNORECASE | re.MULTILINE
)
"""A registry's response for a missing artefact, as oras prints it. Other messages also contain \"not found\", for
example if a credential helper is missing."""


@dataclass(frozen=True, slots=True)
class Registry:
    """A registry. `name` is a host with an optional path, below which each artefact has a repository."""

    name: str

    def reference(self, repository: str, version: str) -> str:
        """Return the full name of an artefact. `version` is a tag or a digest."""
        return f"{self.name}/{repository}{'@' if ':' in version else ':'}{version}"

    def digest(self, repository: str, version: str) -> str | None:
        """Return the digest of a tag; None if the registry has no such tag. Raises ReleaseError as `push` does."""
        try:
            return self._oras("resolve", self.reference(repository, version)).strip()
        except ReleaseError as error:
            if error.reason == "NotFound":
                return None
            raise

    def push(self, layout: Path, repository: str, version: str) -> str:
        """Push an artefact from its layout, unless the registry already has it. Returns the artefact's digest.

        Raises ReleaseError (``AlreadyPublished`` for other content under the same tag, ``LoginFailed``, ``Untrusted``,
        ``Unreachable``, ``RegistryFailed``).
        """
        wanted = layout_digest(layout, version)
        there = self.digest(repository, version)
        if there is not None and there != wanted:
            raise ReleaseError(
                "AlreadyPublished",
                f"{self.reference(repository, version)} is {there}, but this build is {wanted}; a published version "
                "never changes: publish the same build as before, or raise the version",
            )
        if there is None:
            self._oras("cp", "--from-oci-layout", f"{layout}:{version}", self.reference(repository, version))
        return wanted

    def pull(self, repository: str, digest: str, into: Path) -> None:
        """Download an artefact's files to a folder, and check the digest of each file. Raises ReleaseError."""
        self._oras("pull", "--output", str(into), self.reference(repository, digest))

    def sign(self, repository: str, digest: str, key: str, public_key: str) -> bool:
        """Sign an artefact, unless it is already signed with this key. Returns True if a signature was added.

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
        """Check that an artefact is signed with the key. Raises ReleaseError (``NotSigned``)."""
        words = ["verify", "--insecure-ignore-tlog=true", "--key", public_key, self.reference(repository, digest)]
        _run(COSIGN, words, reason="NotSigned")

    def _oras(self, *words: str) -> str:
        try:
            return _run(ORAS, words, reason="RegistryFailed")
        except ReleaseError as error:
            raise _named(self.name, error) from error


def push_to_layout(layout: Path, version: str, files: Mapping[str, str], options: Sequence[str], folder: Path) -> None:
    """Write an artefact with these files to a new OCI layout. `files` maps names below `folder` to media types.

    Raises ReleaseError.
    """
    shutil.rmtree(layout, ignore_errors=True)
    named = [f"{name}:{media_type}" for name, media_type in files.items()]
    words = ["push", "--oci-layout", f"{layout}:{version}", *options, *named]
    _run(ORAS, words, reason="PackFailed", folder=folder)


def layout_digest(layout: Path, version: str) -> str:
    """Return the digest of a tag in an OCI layout. Raises ReleaseError (``PackFailed``)."""
    return _run(ORAS, ["resolve", "--oci-layout", f"{layout}:{version}"], reason="PackFailed").strip()


def sign_file(file: Path, bundle: Path, key: str) -> None:
    """Sign a file, and write the signature to `bundle`. Raises ReleaseError (``SigningFailed``)."""
    _run(COSIGN, ["sign-blob", *OFFLINE, "--key", key, "--bundle", str(bundle), str(file)], reason="SigningFailed")


def write_public_key(key: str, file: Path) -> None:
    """Write the public key of the private key `key` to a file. Raises ReleaseError (``SigningFailed``)."""
    _run(COSIGN, ["public-key", "--key", key, "--outfile", str(file)], reason="SigningFailed")


def verify_file(file: Path, bundle: Path, public_key: str) -> None:
    """Check the signature of a file in `bundle`. Raises ReleaseError (``NotSigned``)."""
    words = ["verify-blob", "--insecure-ignore-tlog=true", "--key", public_key, "--bundle", str(bundle), str(file)]
    _run(COSIGN, words, reason="NotSigned")


def _run(program: GoPrograms, words: Sequence[str], *, reason: str, folder: Path | None = None) -> str:
    path = ensure_programs(program) / program.name
    # Always set COSIGN_PASSWORD, the password of the key. Otherwise cosign would ask for it on the terminal.
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
    """Return an error with a more specific reason and a remedy if the message reveals the cause."""
    host = registry.partition("/")[0]
    for pattern, reason, remedy in (
        (MISSING, "NotFound", "check name and version"),
        (UNTRUSTED, "Untrusted", "set SSL_CERT_FILE to a file with the CA certificate of the registry"),
        (REFUSED, "LoginFailed", f"log in with `docker login {host}`, or `oras login {host}`, as a user that may push"),
        (UNREACHABLE, "Unreachable", "check its name and the network"),
    ):
        if pattern.search(error.message):
            return ReleaseError(reason, f"registry {registry}: {remedy}. {error.message}")
    return error
