"""Kubeconfig files: a party's API server address and credentials."""

import base64
import os
from pathlib import Path

from e2e.local_cluster.pki import Authority

__all__ = ["write_kubeconfig"]


def write_kubeconfig(path: Path, *, server: str, authority: Authority, name: str) -> None:
    """Write a kubeconfig for the certificate that was issued under ``name``, with everything embedded.

    The file is written atomically and readable by its owner only, because it has a private key.
    """

    def embedded(file: Path) -> str:
        return base64.b64encode(file.read_bytes()).decode()

    certificate, key = authority.certificate(name)
    text = f"""\
apiVersion: v1
kind: Config
clusters:
- name: local
  cluster:
    server: {server}
    certificate-authority-data: {embedded(authority.root_certificate)}
users:
- name: {name}
  user:
    client-certificate-data: {embedded(certificate)}
    client-key-data: {embedded(key)}
contexts:
- name: local
  context:
    cluster: local
    user: {name}
current-context: local
"""
    partial = path.with_name(f".{path.name}.partial")
    partial.unlink(missing_ok=True)
    with open(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as out:
        out.write(text)
    partial.rename(path)
