"""The retry policy of a local run: read from a RetryPolicy's manifest, or made from a few delays.

In a cluster the API server judges a RetryPolicy and the operator makes the workers' policies file of it. Here is
neither, so the same is done again: the same fields, bounds and defaults, and the same content under the same hash. A
test holds it to the CRD and to the operator's code.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from fleet_consumer.contract.naming import canonical_delay, parse_delay
from fleet_consumer.contract.patterns import PatternRefused, compile_pattern
from fleet_consumer.contract.policies import (
    ATTEMPTS_MAX,
    DELAYS_MAX,
    HTTP_STATUS,
    RULES_MAX,
    VERSION,
    BudgetAction,
    HeaderProfile,
    Then,
)
from fleet_consumer.contract.section import Section, SettingsInvalid

API_VERSION: Final = "consumerfleet.io/v1alpha1"
KIND: Final = "RetryPolicy"
NAME: Final = r"[a-z]([-a-z0-9]*[a-z0-9])?"
NAME_CHARACTERS_MAX: Final = 63
SHORT_NAME: Final = "local"
"""The policy's name in records' headers where only delays were given."""

CLASS: Final = r"[A-Za-z_][A-Za-z0-9_]*([.][A-Za-z_][A-Za-z0-9_]*)*"
CLASS_CHARACTERS_MAX: Final = 253
REGEX_CHARACTERS_MAX: Final = 512
INT32_MAX: Final = 2**31 - 1
DAY_SECONDS: Final = 86_400
DEFAULTS: Final[Mapping[str, Any]] = {
    "classify": [],
    "undecodable": "Fail",
    "maxTotalSeconds": None,
    "headerProfile": "Native",
    "budget": None,
}
"""Of a policy's spec; those of its parts stand where they are read."""
REVISION_CHARACTERS: Final = 10


@dataclass(frozen=True, slots=True)
class LocalPolicy:
    """One policy as the operator would publish it; `content` is that of its only revision."""

    name: str
    content: Mapping[str, Any]

    @property
    def revision(self) -> str:
        """The hash of the content."""
        canonical = json.dumps(self.content, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
        return hashlib.sha256(canonical.encode()).hexdigest()[:REVISION_CHARACTERS]

    @property
    def sequence(self) -> tuple[str, ...]:
        """The delays in the order of the attempts, canonical texts."""
        return tuple(self.content["sequence"])

    @property
    def total_seconds(self) -> int:
        """All delays of the sequence together."""
        return sum(map(parse_delay, self.sequence))

    def file(self, *, delays: Sequence[str], partitions: int, max_message_bytes: int) -> dict[str, Any]:
        """The policies file that workers follow. `delays` are those whose topics are read, canonical texts;
        `partitions` is what each managed topic has at least, `max_message_bytes` the limit of what is written there.
        """
        return {
            "version": VERSION,
            "policy": self.name,
            "current": self.revision,
            "revisions": {self.revision: dict(self.content)},
            "delays": list(delays),
            "partitions": partitions,
            "maxMessageBytes": max_message_bytes,
        }


def policy_of(options: argparse.Namespace) -> LocalPolicy | None:
    """The policy that the options ask for, None where they ask for none. Raises SettingsInvalid."""
    if options.retry is not None and options.retry_policy is not None:
        raise SettingsInvalid("--retry", "stands beside --retry-policy; give one of the two")
    if options.retry is not None:
        sequence = _delays([text.strip() for text in options.retry.split(",")], "--retry")
        return LocalPolicy(SHORT_NAME, _content(_object({}, "--retry", **DEFAULTS), sequence))
    if options.retry_policy is None:
        return None
    try:
        return parse_manifest(read_manifest(options.retry_policy))
    except SettingsInvalid as refused:
        raise SettingsInvalid(f"--retry-policy {options.retry_policy}", str(refused)) from refused


def read_manifest(path: str) -> dict[str, Any]:
    """The one RetryPolicy among a file's documents. Raises SettingsInvalid."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsInvalid("", f"cannot be read: {error}") from error
    found = []
    for document in _documents(text):
        if not isinstance(document, dict) or "kind" not in document or "apiVersion" not in document:
            raise SettingsInvalid(
                "",
                "holds a document that is no Kubernetes object: write `apiVersion: "
                f"{API_VERSION}`, `kind: {KIND}` and `metadata: {{name: …}}` above the rules, and the rules under "
                "`spec:`; for delays alone, --retry 5s,5s,30s is enough",
            )
        if document["kind"] == KIND:
            found.append(document)
    if len(found) != 1:
        raise SettingsInvalid("", f"holds {len(found)} objects of kind {KIND}; exactly one must be there")
    return found[0]


def _documents(text: str) -> list[Any]:
    """JSON is read as well, and without PyYAML."""
    try:
        from fleet_consumer.worker.local.manifest import documents
    except ImportError:
        try:
            return [json.loads(text)]
        except (ValueError, RecursionError) as error:
            problem = "is no JSON, and YAML needs PyYAML: `pip install pyyaml`, or use --retry 5s,5s,30s"
            raise SettingsInvalid("", problem) from error
    try:
        return documents(text)
    except ValueError as error:
        raise SettingsInvalid("", str(error)) from error


def parse_manifest(manifest: dict[str, Any]) -> LocalPolicy:
    """The policy in a RetryPolicy object. Raises SettingsInvalid for the first bad field found."""
    if manifest["apiVersion"] != API_VERSION:
        raise SettingsInvalid("apiVersion", f"is {manifest['apiVersion']!r}; this version reads {API_VERSION}")
    unknown = sorted(str(name) for name in manifest if name not in ("apiVersion", "kind", "metadata", "spec", "status"))
    if unknown:
        raise SettingsInvalid(unknown[0], "is no field of a RetryPolicy")
    name = _object(manifest.get("metadata"), "metadata").text("name")
    if len(name) > NAME_CHARACTERS_MAX or re.fullmatch(NAME, name) is None:
        raise SettingsInvalid(
            "metadata.name",
            f"is {name!r}; it must be a DNS label of at most {NAME_CHARACTERS_MAX} characters, beginning with a letter",
        )
    spec = _object(manifest.get("spec"), "spec", **DEFAULTS)
    if spec.only("sequence", "generate") == "sequence":
        sequence = _delays(spec.take("sequence"), "spec.sequence")
    else:
        sequence = list(_generated(spec.take("generate"), "spec.generate"))
    return LocalPolicy(name, _content(spec, sequence))


def _object(value: object, path: str, **defaults: object) -> Section:
    """A field that is null counts as absent, as the API server prunes it; what is absent has its default."""
    if isinstance(value, dict):
        for name in value:
            if not isinstance(name, str):
                raise SettingsInvalid(path, f"has the field {name!r}, whose name is no text: write it in quotes")
        value = {**defaults, **{name: each for name, each in value.items() if each is not None}}
    elif value is None:
        raise SettingsInvalid(path, "is missing")
    return Section(value, path)


def _delays(found: object, path: str) -> list[int]:
    """The delays in seconds."""
    if not isinstance(found, list) or not found:
        raise SettingsInvalid(path, "must be a list of delays, such as [5s, 5s, 1m]")
    return [_seconds(text, f"{path}[{index}]") for index, text in enumerate(found)]


def _seconds(text: object, path: str) -> int:
    try:
        return parse_delay(text if isinstance(text, str) else str(text))
    except ValueError as error:
        raise SettingsInvalid(path, str(error)) from error


def _generated(found: object, path: str) -> Iterator[int]:
    """A growing series, in whole numbers throughout: the same everywhere."""
    section = _object(found, path, factorPercent=200, max="1h")
    delay = _seconds(section.text("initial"), section.at("initial"))
    longest = _seconds(section.text("max"), section.at("max"))
    factor = section.integer("factorPercent", 100, 10_000)
    count = section.integer("count", 1, ATTEMPTS_MAX)
    section.end()
    for _ in range(count):
        delay = min(delay, longest)
        yield delay
        delay = delay * factor // 100


def _content(given: Section, sequence: list[int]) -> dict[str, Any]:
    """What workers are given of a policy whose delays were taken out of `given` already."""
    path = given.path
    if len(sequence) > ATTEMPTS_MAX:
        raise SettingsInvalid(path, f"has {len(sequence)} delays; at most {ATTEMPTS_MAX} are taken")
    delays = [canonical_delay(seconds) for seconds in sequence]
    if len(set(delays)) > DELAYS_MAX:
        problem = f"has {len(set(delays))} different delays, and each needs a topic; at most {DELAYS_MAX} are taken"
        raise SettingsInvalid(path, f"{problem} (repeats cost nothing)")
    content = {
        "sequence": delays,
        "classify": _rules(given.take("classify"), given.at("classify")),
        "undecodable": given.choice("undecodable", Then.FAIL, Then.DROP),
        "maxTotalSeconds": given.optional_integer("maxTotalSeconds", 1, INT32_MAX)
        or max(DAY_SECONDS, 2 * sum(sequence)),
        "headerProfile": given.choice("headerProfile", *HeaderProfile),
        "budget": _budget(given.take("budget"), given.at("budget")),
    }
    given.end()
    return content


def _rules(found: object, path: str) -> list[dict[str, Any]]:
    if not isinstance(found, list) or len(found) > RULES_MAX:
        raise SettingsInvalid(path, f"must be a list of at most {RULES_MAX} rules")
    return [_rule(_object(each, f"{path}[{index}]")) for index, each in enumerate(found)]


def _rule(section: Section) -> dict[str, Any]:
    when = _object(section.take("when"), section.at("when"))
    then = section.choice("then", *Then)
    section.end()
    condition = when.only("exception", "httpStatus", "messageRegex")
    path, text = when.at(condition), when.text(condition)
    when.end()
    if condition == "exception":
        if len(text) > CLASS_CHARACTERS_MAX or re.fullmatch(CLASS, text) is None:
            raise SettingsInvalid(path, f"is {text!r}; it must name a Python class, such as ValueError")
    elif condition == "httpStatus":
        if re.fullmatch(HTTP_STATUS, text) is None:
            raise SettingsInvalid(path, f'is {text!r}; it must be a status such as "429", or a hundred such as "4xx"')
    else:
        _check_pattern(text, path)
    return {"when": {condition: text}, "then": then}


def _check_pattern(text: str, path: str) -> None:
    if len(text) > REGEX_CHARACTERS_MAX:
        raise SettingsInvalid(path, f"has {len(text)} characters; at most {REGEX_CHARACTERS_MAX} are taken")
    try:
        compile_pattern(text)
    except PatternRefused as refused:
        raise SettingsInvalid(path, str(refused)) from refused


def _budget(found: object, path: str) -> dict[str, Any] | None:
    if found is None:
        return None
    section = _object(
        found, path, maxFailurePercent=50, windowSeconds=60, minRecords=100, action="Pause", cooldownSeconds=30
    )
    budget = {
        "maxFailurePercent": section.integer("maxFailurePercent", 1, 100),
        "windowSeconds": section.integer("windowSeconds", 1, 3600),
        "minRecords": section.integer("minRecords", 1, 1_000_000),
        "action": section.choice("action", *BudgetAction),
        "cooldownSeconds": section.integer("cooldownSeconds", 1, 3600),
    }
    section.end()
    return budget
