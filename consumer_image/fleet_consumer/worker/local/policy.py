"""The retry policy of a local run, from the manifest of a RetryPolicy or from a list of delays."""

import argparse
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from fleet_consumer.contract.naming import parse_delay
from fleet_consumer.contract.policy_expansion import expand_delays, expand_policy
from fleet_consumer.contract.section import SettingsInvalid, manifest_section

API_VERSION: Final = "consumerfleet.io/v1alpha1"
KIND: Final = "RetryPolicy"
NAME: Final = r"[a-z]([-a-z0-9]*[a-z0-9])?"
NAME_CHARACTERS_MAX: Final = 63
SHORT_NAME: Final = "local"
"""Name of the policy for a list of delays. Headers of retried records contain this name."""


@dataclass(frozen=True, slots=True)
class LocalPolicy:
    """A policy as the operator would publish it. `content` is the content of the only revision."""

    name: str
    content: Mapping[str, Any]

    @property
    def sequence(self) -> tuple[str, ...]:
        """The delays as canonical strings, in the order of the attempts."""
        return tuple(self.content["sequence"])

    @property
    def total_seconds(self) -> int:
        return sum(map(parse_delay, self.sequence))


def policy_of(options: argparse.Namespace) -> LocalPolicy | None:
    """Return the policy of `--retry` or `--retry-policy`; None if neither is set. Raises SettingsInvalid."""
    if options.retry is not None and options.retry_policy is not None:
        raise SettingsInvalid("--retry", "cannot be given together with --retry-policy; give one of the two")
    if options.retry is not None:
        delays = [text.strip() for text in options.retry.split(",")]
        return LocalPolicy(SHORT_NAME, expand_delays(delays, "--retry"))
    if options.retry_policy is None:
        return None
    try:
        return parse_manifest(read_manifest(options.retry_policy))
    except SettingsInvalid as refused:
        raise SettingsInvalid(f"--retry-policy {options.retry_policy}", str(refused)) from refused


def read_manifest(path: str) -> dict[str, Any]:
    """Return the RetryPolicy in a file, which must contain exactly one. Raises SettingsInvalid."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsInvalid("", f"cannot be read: {error}") from error
    documents = _documents(text)
    for document in documents:
        if not isinstance(document, dict) or "kind" not in document or "apiVersion" not in document:
            raise SettingsInvalid(
                "",
                "holds a document that is not a Kubernetes object: write `apiVersion: "
                f"{API_VERSION}`, `kind: {KIND}` and `metadata: {{name: …}}` above the rules, and the rules under "
                "`spec:`; for delays alone, --retry 5s,5s,30s is enough",
            )
    found: list[dict[str, Any]] = [document for document in documents if document["kind"] == KIND]
    if len(found) != 1:
        raise SettingsInvalid("", f"holds {len(found)} objects of kind {KIND}; it must hold exactly one")
    return found[0]


def _documents(text: str) -> list[Any]:
    """Parse a text as YAML documents, or as one JSON document if PyYAML is missing. Raises SettingsInvalid."""
    try:
        from fleet_consumer.worker.local.manifest import documents
    except ImportError:
        try:
            return [json.loads(text)]
        except (ValueError, RecursionError) as error:
            problem = "is not JSON, and YAML needs PyYAML: `pip install pyyaml`, or use --retry 5s,5s,30s"
            raise SettingsInvalid("", problem) from error
    try:
        return documents(text)
    except ValueError as error:
        raise SettingsInvalid("", str(error)) from error


def parse_manifest(manifest: dict[str, Any]) -> LocalPolicy:
    """Return the policy of a RetryPolicy object. Raises SettingsInvalid for the first invalid field."""
    if manifest["apiVersion"] != API_VERSION:
        raise SettingsInvalid("apiVersion", f"is {manifest['apiVersion']!r}; this version reads {API_VERSION}")
    unknown = sorted(str(name) for name in manifest if name not in ("apiVersion", "kind", "metadata", "spec", "status"))
    if unknown:
        raise SettingsInvalid(unknown[0], "is not a field of a RetryPolicy")
    name = manifest_section(manifest.get("metadata"), "metadata").text("name")
    if len(name) > NAME_CHARACTERS_MAX or re.fullmatch(NAME, name) is None:
        raise SettingsInvalid(
            "metadata.name",
            f"is {name!r}; it must be a DNS label of at most {NAME_CHARACTERS_MAX} characters, beginning with a letter",
        )
    spec = manifest.get("spec")
    budget = spec.get("budget") if isinstance(spec, dict) else None
    if isinstance(budget, dict) and "action" not in budget:
        raise SettingsInvalid("spec.budget.action", "is required with spec.budget: Pause, Fail or None")
    return LocalPolicy(name, expand_policy(spec, "spec"))
