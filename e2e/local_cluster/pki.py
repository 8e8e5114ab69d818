"""The cluster's certificates, made with openssl: one authority, and a pair of certificate and key for each party.

The authority and the service-account key live as long as the cluster, because tokens and kubeconfigs in use depend on
them. Everything else is issued again at each start, for 10 ms each, so that it follows a changed node address.
"""

import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

from e2e.local_cluster.commands import run

__all__ = ["Authority"]

VALID_DAYS = 3650
NEW_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
# openssl's own configuration file adds extensions that would collide with ours.
BARE_CONFIG = "[req]\ndistinguished_name = dn\n[dn]\n"


class Authority:
    """A certificate authority in ``directory``, created there on first use."""

    def __init__(self, directory: Path, *, subject: str = "/CN=local-cluster-ca") -> None:
        self.directory = directory
        self._subject = subject
        self.root_certificate = directory / "root" / "ca.crt"
        self.root_key = directory / "root" / "ca.key"
        self.service_account_key = directory / "root" / "service-account.key"
        self.service_account_public_key = directory / "root" / "service-account.pub"

    def ensure(self) -> None:
        """Create the authority and the service-account key pair unless they exist: both, or after a crash neither."""
        root = self.directory / "root"
        if root.is_dir():
            return
        self.directory.mkdir(parents=True, exist_ok=True)
        (self.directory / "openssl.cnf").write_text(BARE_CONFIG)
        partial = Path(tempfile.mkdtemp(prefix="root.partial-", dir=self.directory))
        try:
            self._request(
                partial / "ca",
                self._subject,
                ["basicConstraints=critical,CA:TRUE", "keyUsage=critical,keyCertSign,cRLSign,digitalSignature"],
            )
            key = partial / "service-account.key"
            run(["openssl", "genpkey", "-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-out", key])
            run(["openssl", "pkey", "-in", key, "-pubout", "-out", partial / "service-account.pub"])
            partial.rename(root)
        finally:
            shutil.rmtree(partial, ignore_errors=True)

    def issue(
        self, name: str, common_name: str, *, group: str | None = None, names: Sequence[str] = ()
    ) -> tuple[Path, Path]:
        """Issue a certificate for both directions of TLS; returns the paths of certificate and key.

        ``group`` becomes the organization, which Kubernetes reads as the user's group. ``names`` are the addresses a
        server answers under, in openssl's form (``DNS:kubernetes``, ``IP:10.96.0.1``).
        """
        subject = f"/O={group}/CN={common_name}" if group else f"/CN={common_name}"
        extensions = [
            "basicConstraints=critical,CA:FALSE",
            "keyUsage=critical,digitalSignature",
            "extendedKeyUsage=clientAuth,serverAuth",
            "authorityKeyIdentifier=keyid:always",
        ]
        if names:
            extensions.append(f"subjectAltName={','.join(names)}")
        stem = self.directory / name
        self._request(stem, subject, extensions, issuer=(self.root_certificate, self.root_key))
        return self.certificate(name)

    def certificate(self, name: str) -> tuple[Path, Path]:
        """The paths of an issued pair: certificate, key."""
        return self.directory / f"{name}.crt", self.directory / f"{name}.key"

    def _request(
        self, stem: Path, subject: str, extensions: Sequence[str], *, issuer: tuple[Path, Path] | None = None
    ) -> None:
        words: list[str | Path] = ["openssl", "req", "-x509", "-config", self.directory / "openssl.cnf", *NEW_KEY]
        words += ["-days", str(VALID_DAYS), "-subj", subject]
        words += ["-out", stem.with_suffix(".crt"), "-keyout", stem.with_suffix(".key")]
        for extension in extensions:
            words += ["-addext", extension]
        if issuer:
            words += ["-CA", issuer[0], "-CAkey", issuer[1]]
        run(words, reason="CertificateFailed")
