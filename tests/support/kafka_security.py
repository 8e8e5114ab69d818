"""Security of a broker: certificates, a token issuer's keys, and the settings of its listeners.

Certificates come from the same authority code as the local cluster's; Kafka reads them as PEM. Tokens are JWTs signed
with openssl (RS256), which the broker checks against a key file as it would against an identity provider's.
"""

from __future__ import annotations

import base64
import json
import math
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

from e2e.local_cluster.commands import run
from e2e.local_cluster.pki import Authority

__all__ = ["MUTUAL_LISTENER", "OAUTH_AUDIENCE", "SASL_TLS_LISTENER", "TLS_LISTENER", "BrokerPki", "TokenIssuer"]

TLS_LISTENER = "TLS"
MUTUAL_LISTENER = "MUTUAL"
SASL_TLS_LISTENER = "SASL_TLS"
OAUTH_AUDIENCE = "kafka"
OAUTH_ISSUER = "https://issuer.test"
BROKER_NAMES = ("IP:127.0.0.1", "DNS:localhost")


class BrokerPki:
    """An authority, the broker's certificate, and clients' certificates; `rotate` replaces all of them.

    ``ca_file``, ``cert_file`` and ``key_file`` are what clients mount. They are reached through a symbolic link to a
    folder, which `rotate` swaps in one step, as the kubelet does with a Secret.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._mount = directory / "mount"
        self._data = self._mount / "..data"
        self._generation = 0
        self.keystore = directory / "broker.pem"
        self.truststore = directory / "clients-ca.pem"
        self.ca_file, self.cert_file, self.key_file = (
            str(self._mount / name) for name in ("ca.crt", "tls.crt", "tls.key")
        )
        self._mount.mkdir(parents=True)
        for name in ("ca.crt", "tls.crt", "tls.key"):
            (self._mount / name).symlink_to(f"..data/{name}")
        self.rotate()

    @property
    def authority(self) -> Authority:
        """The present authority."""
        return Authority(self._directory / f"authority-{self._generation}")

    def rotate(self, *, mount: bool = True) -> None:
        """A new authority, a new broker certificate, a new client certificate; the broker reads them when it starts.

        With ``mount`` False the clients' files stay the old ones until `mount` is called.
        """
        self._generation += 1
        authority = self.authority
        authority.ensure()
        certificate, key = authority.issue("broker", "broker", names=BROKER_NAMES)
        self.keystore.write_text(key.read_text() + certificate.read_text())
        self.truststore.write_text(authority.root_certificate.read_text())
        if mount:
            self.mount()

    def certificate(self, name: str, *, names: Sequence[str] = (), expired: bool = False) -> tuple[str, str]:
        """Certificate and key for ``name`` by the present authority; an ``expired`` one ended yesterday."""
        certificate, key = self.authority.issue(name, name, names=names)
        if expired:
            root, request = self.authority, self._directory / f"{name}.csr"
            run(["openssl", "req", "-new", "-key", key, "-subj", f"/CN={name}", "-out", request])
            issuer = ["-CA", str(root.root_certificate), "-CAkey", str(root.root_key), "-set_serial", "7"]
            run(["openssl", "x509", "-req", "-in", str(request), *issuer, "-days", "-1", "-out", str(certificate)])
        return str(certificate), str(key)

    def mount(self) -> None:
        """Give clients the present files, in one step."""
        authority = self.authority
        certificate, key = authority.issue("client", "client")
        folder = self._mount / f"..{self._generation}-{time.monotonic_ns()}"
        folder.mkdir()
        for name, source in (("ca.crt", authority.root_certificate), ("tls.crt", certificate), ("tls.key", key)):
            (folder / name).write_bytes(source.read_bytes())
        link = self._mount / "..data_tmp"
        link.symlink_to(folder.name)
        link.rename(self._data)

    def listener_settings(self, listener: str, *, mutual: bool) -> dict[str, str]:
        """Kafka's settings of one TLS listener."""
        prefix = f"listener.name.{listener.lower()}.ssl"
        return {
            f"{prefix}.keystore.type": "PEM",
            f"{prefix}.keystore.location": str(self.keystore),
            f"{prefix}.truststore.type": "PEM",
            f"{prefix}.truststore.location": str(self.truststore),
            f"{prefix}.client.auth": "required" if mutual else "none",
        }


class TokenIssuer:
    """Signs tokens; ``jwks`` is the file by which a broker knows its key."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._key = directory / "issuer.key"
        self.jwks = directory / "jwks.json"
        run(["openssl", "genpkey", "-algorithm", "RSA", "-pkeyopt", "rsa_keygen_bits:2048", "-out", self._key])
        modulus = run(["openssl", "rsa", "-in", self._key, "-noout", "-modulus"]).strip().partition("=")[2]
        key = {
            "kty": "RSA",
            "kid": "test",
            "use": "sig",
            "alg": "RS256",
            "e": "AQAB",
            "n": _url(bytes.fromhex(modulus)),
        }
        self.jwks.write_text(json.dumps({"keys": [key]}))

    def token(self, subject: str, *, lifetime_s: float = 3600.0, audience: str = OAUTH_AUDIENCE) -> str:
        """A signed JWT for ``subject`` that ends after ``lifetime_s`` (already ended when negative)."""
        now = time.time()
        claims = {
            "sub": subject,
            "aud": audience,
            "iss": OAUTH_ISSUER,
            "iat": int(min(now, now + lifetime_s) - 1),
            # Kafka's token parser knows whole seconds only: round up.
            "exp": math.ceil(now + lifetime_s),
        }
        parts = ({"alg": "RS256", "typ": "JWT", "kid": "test"}, claims)
        signed = ".".join(_url(json.dumps(part).encode()) for part in parts)
        command = ["openssl", "dgst", "-sha256", "-sign", str(self._key)]
        signature = subprocess.run(command, input=signed.encode(), check=True, capture_output=True).stdout
        return f"{signed}.{_url(signature)}"

    def listener_settings(self, listeners: Sequence[str]) -> dict[str, str]:
        """Kafka's settings with which these listeners accept the issuer's tokens."""
        handler = "org.apache.kafka.common.security.oauthbearer.OAuthBearerValidatorCallbackHandler"
        module = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required;"
        settings = {
            "sasl.oauthbearer.jwks.endpoint.url": self.jwks.as_uri(),
            "sasl.oauthbearer.expected.audience": OAUTH_AUDIENCE,
            "sasl.oauthbearer.expected.issuer": OAUTH_ISSUER,
            # Tests use tokens that live for seconds; the default tolerance would accept expired ones for half a minute.
            "sasl.oauthbearer.clock.skew.seconds": "0",
        }
        for listener in listeners:
            prefix = f"listener.name.{listener.lower()}.oauthbearer.sasl"
            settings |= {f"{prefix}.jaas.config": module, f"{prefix}.server.callback.handler.class": handler}
        return settings

    @property
    def jvm_options(self) -> list[str]:
        """Kafka reads keys only from places that its command line allows."""
        return [f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={self.jwks.as_uri()}"]


def _url(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")
