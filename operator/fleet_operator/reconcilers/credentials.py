"""Reads the Secrets of a KafkaCluster by name. Secrets are never listed, and their content never appears in logs or
conditions.

A Secret must have a label that allows this use. Otherwise anybody with permission to create a KafkaCluster could have
any Secret of the namespace sent to their own broker. OpenSSL checks PEM strings (at most 1 MiB, the limit of a Secret)
in a thread, because the check blocks and needs the private key in a file. Decision:
docs/decisions/0035-credentials-of-others.md.
"""

import asyncio
import base64
import ssl
import tempfile
from dataclasses import dataclass
from typing import Final

from fleet_consumer.contract.brokers import certificates, credential_text, matching_files
from fleet_consumer.net import OAuthSettings, SaslSettings, parse_addresses
from fleet_consumer.net.tls_files import load_client, readable_certificates
from fleet_operator.api.v1alpha1 import KafkaCluster, conditions
from fleet_operator.api.v1alpha1.kafkacluster import CA_KEY, CaSecretReference, Sasl, Tls
from fleet_operator.api.v1alpha1.model import ALLOWED_ADDRESSES_ANNOTATION, CREDENTIALS_LABEL
from fleet_operator.clients.kinds import SECRET, JsonObject
from fleet_operator.clients.kube import KubeClient, KubeForbiddenError
from fleet_operator.observe.subscriptions import ObserverSettings, TlsMaterial
from fleet_operator.planning.problem import Problem

UNREADABLE: Final = "no PEM certificate can be read from it"


class UnusableSecretError(Exception):
    """A Secret that a KafkaCluster refers to cannot be used; the KafkaCluster's condition reports `problem`."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.message)
        self.problem = problem


@dataclass(frozen=True, slots=True)
class SecretReader:
    kube: KubeClient
    namespace: str

    async def observer_settings(self, cluster: KafkaCluster) -> ObserverSettings:
        """Build a cluster's connection settings with its Secrets. Raises UnusableSecretError, KubeError, ValueError."""
        spec = cluster.spec
        tls = None if spec.tls is None else await self._material(spec.tls, cluster)
        sasl = None
        if spec.sasl is not None:
            sasl = self._login(spec.sasl, await self._read(spec.sasl.secret_ref.name, cluster))
        parse_addresses(spec.bootstrap_servers)  # raises for invalid addresses, before a thread is started for them
        return ObserverSettings(
            bootstrap_servers=spec.bootstrap_servers,
            interval_seconds=float(spec.observe_interval_seconds),
            tls=tls,
            sasl=sasl,
            awaits_offsets_topic=spec.offsets_topic.manage == "Provision",
        )

    async def _material(self, tls: Tls, cluster: KafkaCluster) -> TlsMaterial:
        ca = certificate = key = None
        if (authorities := tls.ca_secret_ref) is not None:
            secret = await self._read(authorities.name, cluster)
            ca = await asyncio.to_thread(self._authorities, authorities, secret)
        if (client := tls.client_cert_secret_ref) is not None:
            secret = await self._read(client.name, cluster)
            certificate, key = self._value(secret, client.cert_key), self._value(secret, client.key_key)
            fault = await asyncio.to_thread(pair_fault, certificate, key)
            if fault is not None:
                message = (
                    f"keys `{client.cert_key}` and `{client.key_key}` of secret `{client.name}` cannot be used as "
                    f"certificate and private key ({fault}): both must be PEM, and the key must match the certificate "
                    "and have no passphrase"
                )
                raise UnusableSecretError(Problem(conditions.SECRET_INCOMPLETE, message))
        return TlsMaterial(ca=ca, certificate=certificate, key=key)

    def _login(self, sasl: Sasl, secret: JsonObject) -> SaslSettings:
        """Build the SASL settings. Raises ValueError if the token endpoint cannot be used."""
        *named, proof = (self._text(secret, key) for key in sasl.secret_keys.values())
        name = sasl.identity if sasl.identity is not None else named[0]
        if sasl.oauth is None:
            return SaslSettings(mechanism=sasl.mechanism, username=name, password=proof)
        oauth = OAuthSettings(
            token_endpoint=sasl.oauth.token_endpoint, client_id=name, client_secret=proof, scope=sasl.oauth.scope
        )
        return SaslSettings(mechanism=sasl.mechanism, oauth=oauth)

    async def _read(self, name: str, cluster: KafkaCluster) -> JsonObject:
        try:
            secret = await self.kube.get(SECRET, self.namespace, name)
        except KubeForbiddenError as error:
            if error.status != 403:
                raise  # an error in the operator's authentication is not this KafkaCluster's problem
            message = (
                f"the operator may not read secret `{name}` in namespace `{self.namespace}`: grant the permission "
                f"there, for example by adding the namespace to the chart's value secrets.namespaces ({error})"
            )
            raise UnusableSecretError(Problem(conditions.SECRET_FORBIDDEN, message)) from error
        if secret is None:
            message = f"secret `{name}` does not exist in namespace `{self.namespace}`: create it"
            raise UnusableSecretError(Problem(conditions.SECRET_NOT_FOUND, message))
        if secret["metadata"].get("labels", {}).get(CREDENTIALS_LABEL) != "true":
            message = (
                f"secret `{name}` is not labelled for use by a KafkaCluster: label it with "
                f"`kubectl -n {self.namespace} label secret {name} {CREDENTIALS_LABEL}=true`"
            )
            raise UnusableSecretError(Problem(conditions.SECRET_NOT_LABELLED, message))
        if others := _not_allowed(secret, cluster):
            message = (
                f"secret `{name}` may not be sent to {', '.join(others)}, because its annotation "
                f"{ALLOWED_ADDRESSES_ANNOTATION} does not allow it: correct the KafkaCluster, or ask the Secret's "
                "owner to change the annotation"
            )
            raise UnusableSecretError(Problem(conditions.SECRET_NOT_LABELLED, message))
        return secret

    def _authorities(self, reference: CaSecretReference, secret: JsonObject) -> bytes:
        """Read CA certificates as PEM, by the same rules as workers: from the given key, or from all keys that match
        the pattern. Blocks."""
        if reference.pattern is None:
            key = reference.key or CA_KEY
            value = self._value(secret, key)
            if readable_certificates([value]):
                return value
            message = (
                f"key `{key}` of secret `{reference.name}` cannot be used as CA certificates ({UNREADABLE}): it must "
                "contain PEM certificates"
            )
            raise UnusableSecretError(Problem(conditions.SECRET_INCOMPLETE, message))
        keys = matching_files(secret.get("data") or {}, reference.pattern)
        if not keys:
            message = f"secret `{reference.name}` has no key that matches `{reference.pattern}`: correct the pattern"
            raise UnusableSecretError(Problem(conditions.SECRET_INCOMPLETE, message))
        found = readable_certificates(self._value(secret, key) for key in keys if secret["data"][key])
        if not found:
            message = f"no key of secret `{reference.name}` that matches `{reference.pattern}` holds a PEM certificate"
            raise UnusableSecretError(Problem(conditions.SECRET_INCOMPLETE, f"{message}: correct the pattern"))
        return found.encode()

    def _value(self, secret: JsonObject, key: str) -> bytes:
        encoded = (secret.get("data") or {}).get(key)
        if not encoded:
            message = f"secret `{secret['metadata']['name']}` lacks a value for key `{key}`: add it"
            raise UnusableSecretError(Problem(conditions.SECRET_INCOMPLETE, message))
        return base64.b64decode(encoded)

    def _text(self, secret: JsonObject, key: str) -> str:
        where = f"key `{key}` of secret `{secret['metadata']['name']}`"
        try:
            text = credential_text(self._value(secret, key))
        except UnicodeDecodeError as error:
            message = f"{where} is not UTF-8 text: replace its value"
            raise UnusableSecretError(Problem(conditions.SECRET_INCOMPLETE, message)) from error
        if not text or "\0" in text:
            what = "is empty" if not text else "has a zero byte, as text in UTF-16 does"
            raise UnusableSecretError(Problem(conditions.SECRET_INCOMPLETE, f"{where} {what}: replace its value"))
        return text


def _not_allowed(secret: JsonObject, cluster: KafkaCluster) -> list[str]:
    """Addresses in the KafkaCluster's spec that the Secret's annotation does not allow."""
    allowed = secret["metadata"].get("annotations", {}).get(ALLOWED_ADDRESSES_ANNOTATION)
    if allowed is None:
        return []
    sasl = cluster.spec.sasl
    asked = [str(each) for each in parse_addresses(cluster.spec.bootstrap_servers)]
    asked += [sasl.oauth.token_endpoint] if sasl is not None and sasl.oauth is not None else []
    listed = {each.strip() for each in allowed.split(",")}
    return [address for address in asked if address not in listed]


def pair_fault(certificate: bytes, key: bytes) -> str | None:
    """The reason why a certificate and a private key cannot be used together; None without a fault."""
    found = "".join(certificates([certificate]))
    if not found:
        return UNREADABLE
    with tempfile.NamedTemporaryFile(prefix="fleet-key-") as file:  # only this user can read the file
        file.write(key)
        file.flush()
        try:
            load_client(ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), found, file.name)
        except (ssl.SSLError, ValueError) as error:
            return str(error)
    return None
