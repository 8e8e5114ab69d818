"""A real registry with TLS and a login, the settings of its clients, and keys for signatures."""

from __future__ import annotations

import base64
import json
import os
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import yaml

from e2e.local_cluster.daemons import Daemon, free_ports
from e2e.local_cluster.gomodules import ensure_programs
from e2e.local_cluster.pki import Authority
from release.programs import COSIGN, REGISTRY
from tests.support.waiting import eventually

USER: Final = "fleet"
PASSWORD: Final = "fleet-password"
# The registry accepts only bcrypt, which Python's standard library lacks.
PASSWORD_FILE: Final = f"{USER}:$2y$05$abcdefghijklmnopqrstuu.ULNRIFYYyaS4R7Mr3NW9iWBr7hNsZS\n"
KEY_PASSWORD: Final = "key-password"


@dataclass(frozen=True, slots=True)
class TestRegistry:
    """A registry that listens on a local address."""

    __test__ = False
    folder: Path
    host: str
    """Name and port, as in references."""

    @property
    def authority(self) -> Path:
        """The certificate authority of its certificate."""
        return Authority(self.folder / "pki").root_certificate

    @property
    def blobs(self) -> Path:
        """The folder in which it keeps all content, by digest."""
        return self.folder / "storage" / "docker" / "registry" / "v2" / "blobs" / "sha256"

    def environment(self, password: str = PASSWORD) -> dict[str, str]:
        """Variables for its clients: the login of `docker login`, and the authority."""
        folder = self.folder / f"login-{password}"
        folder.mkdir(exist_ok=True)
        login = base64.b64encode(f"{USER}:{password}".encode()).decode()
        (folder / "config.json").write_text(json.dumps({"auths": {self.host: {"auth": login}}}))
        return {"DOCKER_CONFIG": str(folder), "SSL_CERT_FILE": str(self.authority)}


@contextmanager
def registry(
    folder: Path, *, name: str = "127.0.0.1", address: str = "127.0.0.1", port: int = 0
) -> Iterator[TestRegistry]:
    """A registry until the end of the block; `name` is in its certificate and in references."""
    port = port or free_ports(1)[0]
    authority = Authority(folder / "pki")
    authority.ensure()
    certificate, key = authority.issue("registry", name, names=[f"{'IP' if name == address else 'DNS'}:{name}"])
    (folder / "passwords").write_text(PASSWORD_FILE)
    config = {
        "version": 0.1,
        "log": {"level": "warn"},
        "storage": {"filesystem": {"rootdirectory": str(folder / "storage")}},
        "auth": {"htpasswd": {"realm": "fleet", "path": str(folder / "passwords")}},
        "http": {"addr": f"{address}:{port}", "tls": {"certificate": str(certificate), "key": str(key)}},
    }
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    words = [str(ensure_programs(REGISTRY) / "registry"), "serve", str(folder / "config.yaml")]
    process = Daemon("registry", words, log=folder / "registry.log")
    made = TestRegistry(folder, name if port == 443 else f"{name}:{port}")
    try:
        process.start()
        eventually(lambda: _answers(address, port, process), what=f"an answer of {made.host}")
        yield made
    finally:
        process.stop()


def new_key(folder: Path) -> Path:
    """A private key as `cosign generate-key-pair` writes it, with `cosign.pub` next to it."""
    environment = {**os.environ, "COSIGN_PASSWORD": KEY_PASSWORD}
    program = ensure_programs(COSIGN) / "cosign"
    subprocess.run([program, "generate-key-pair"], cwd=folder, env=environment, check=True, capture_output=True)
    return folder / "cosign.key"


def _answers(address: str, port: int, process: Daemon) -> bool:
    process.check_running()
    with socket.create_connection((address, port), timeout=1):
        return True
