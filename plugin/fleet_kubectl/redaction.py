"""Removal of secrets from objects and logs before they leave the cluster. Pure.

Secret objects are never read. This module removes secrets that somebody wrote into other objects or logs:

- values of environment variables and headers, and contents of ConfigMaps
- values of fields, arguments and log text with names such as `password`
- logins in URLs, and annotations that contain whole manifests

In unclear cases, the value is removed.
"""

import re
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any, Final

from fleet_operator.clients.kinds import LAST_APPLIED, JsonObject

REDACTED: Final = "(redacted)"
WORDS: Final = (
    r"passw|passphrase|pwd|secret|token|credential|authorization|cookie|jaas|signature|\bsig\b"
    r"|(?:api|access|account|private|shared|signing|encryption|storage|master)[ ._-]?key"
)
"""Regular expression for parts of a name. If a name contains such a part, it is "telling": its value is secret."""
TELLING: Final = re.compile(WORDS, re.IGNORECASE)
FLAG: Final = re.compile(rf"-[\w.-]*(?:{WORDS})[\w.-]*", re.IGNORECASE)
ASSIGNED: Final = re.compile(rf"(-*[\w.-]*(?:{WORDS})[\w.-]*=).*", re.IGNORECASE | re.DOTALL)
FREE_KEY: Final = re.compile(rf"{WORDS}|key$", re.IGNORECASE)
REFERENCES: Final = ("Ref", "Name", "Key", "Endpoint", "File", "Seconds", "Path")
"""Endings of names of API fields. These fields refer to an object, a key, a file or a number, and contain no secret."""
FREE: Final = ("annotations", "volumeAttributes", "options", "parameters")
"""Fields that are maps with arbitrary keys."""
OWN_ANNOTATIONS: Final = "consumerfleet.io/"
ANNOTATION_MAX: Final = 256
"""Maximum length of other tools' annotations. Longer annotations, and JSON, are left out, because they can contain
whole manifests."""
QUOTED: Final = r"""\\"(?:\\\\\\"|\\\\[^"]|[^\\"])*\\"|"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.|'')*'"""
"""A quoted value in one of three forms: inside a JSON string (escaped quotes), in JSON, or in YAML or a shell."""
BARE: Final = r"(?:-?\d[\d.eE+-]*|true|false|null)(?=\s*[,}\]])"
REST: Final = r"""[\[{][^\n]*|[|>][-+\d]*[ ]*(?:\n[ \t]+[^\n]*)+|(?:(?!"\s*[,}\]])[^\n])+"""
"""A value without quotes: a JSON list or object, a YAML block, or the rest of the line. In a JSON string, the rest of
the line ends at the end of the string."""
URL: Final = re.compile(r"(:(?:\\?/){2})([^\s\"<>]+)")
DIGEST: Final = "sha256:"
TEXTS: Final[tuple[tuple[re.Pattern[str], str], ...]] = (
    (re.compile(r"\b(bearer|basic)\s+[\w.~+/=-]{8,}", re.IGNORECASE), rf"\1 {REDACTED}"),
    (re.compile(r"\beyJ[\w-]{8,}\.[\w-]+\.[\w-]*"), REDACTED),
    (re.compile(r"\b(?:AKIA|ASIA)[A-Z0-9]{12,}\b"), REDACTED),
    (re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.DOTALL), REDACTED),
    (
        re.compile(rf"((?:{WORDS})[\w.-]{{0,64}}\\*[\"']\s*:\s*)(?:{QUOTED}|{BARE}|{REST})", re.IGNORECASE),
        rf"\1{REDACTED}",
    ),
    (
        re.compile(rf"((?:{WORDS})[\w.-]{{0,64}}\s*[:=]\s*)(?:{QUOTED}|{REST})", re.IGNORECASE),
        rf"\1{REDACTED}",
    ),
    (
        re.compile(rf"((?<!\S)--?[\w.-]{{0,64}}(?:{WORDS})[\w.-]{{0,64}}\s+)(?:{QUOTED}|\S+)", re.IGNORECASE),
        rf"\1{REDACTED}",
    ),
)
"""Patterns of secrets in text, with their replacements. The last three match a name and its value. The first of these
three is for JSON, and keeps the other fields of the object."""
CONTENTS: Final = ("data", "binaryData", "stringData")


def redacted_text(text: str) -> str:
    """Remove logins, tokens, keys and values of telling names from log text or a message."""
    text = URL.sub(lambda found: found[1] + _without_login(found[2]), text)
    for pattern, replacement in TEXTS:
        text = pattern.sub(replacement, text)
    return text


def _without_login(rest: str) -> str:
    """Remove the login from the part of a URL after `://`, whatever the login contains. An image digest (`@sha256:`) is
    kept."""
    login, at, place = rest.rpartition("@")
    if not at:
        return rest
    if place.startswith(DIGEST):
        return _without_login(login) + at + place
    return f"{REDACTED}@{place}"


def redacted(body: JsonObject) -> JsonObject:
    """A copy of an object without values that may be secret. Names of Secrets are kept, because they are not secret."""
    copied: JsonObject = _walk(body, "")
    metadata = copied.get("metadata") or {}
    metadata.pop("managedFields", None)
    (metadata.get("annotations") or {}).pop(LAST_APPLIED, None)
    if copied.get("kind") in ("ConfigMap", "Secret"):
        for part in CONTENTS:
            if isinstance(body.get(part), dict):
                copied[part] = {name: f"({len(str(value))} characters)" for name, value in body[part].items()}
    return copied


def _walk(value: Any, name: str, hides: Callable[[str], bool] | None = None) -> Any:
    """A copy of a value without secrets. `hides(name)` is True if a string or number of this name is secret. If `hides`
    is None, `_hides` is used."""
    hides = hides or _hides
    if isinstance(value, dict):
        return _map(value, name)
    if isinstance(value, list):
        return [*_items(value, name)]
    if isinstance(value, str):
        return REDACTED if hides(name) or (hides is _hides_free and _is_manifest(name, value)) else redacted_text(value)
    return REDACTED if isinstance(value, int | float) and not isinstance(value, bool) and hides(name) else value


def _map(value: JsonObject, name: str) -> JsonObject:
    """Redact the fields of an object, or a map with arbitrary keys (FREE). Values of environment variables and headers
    are always removed."""
    if name in FREE:
        return {key: _walk(each, str(key), _hides_free) for key, each in value.items()}
    pair = "name" in value and "value" in value
    return {key: REDACTED if pair and key == "value" else _walk(each, str(key)) for key, each in value.items()}


def _items(values: list[Any], name: str) -> Iterator[Any]:
    """Redact the items of a list. In arguments, the item after a telling flag (such as `--password`) is the flag's
    value."""
    for before, each in pairwise((None, *values)):
        if isinstance(each, str) and isinstance(before, str) and FLAG.fullmatch(before):
            yield REDACTED
        elif isinstance(each, str) and (assigned := ASSIGNED.fullmatch(each)):
            yield assigned[1] + REDACTED
        elif name == "env" and not isinstance(each, dict):
            yield REDACTED
        else:
            yield _walk(each, name)


def _hides(name: str) -> bool:
    return TELLING.search(name) is not None and not name.endswith(REFERENCES)


def _hides_free(name: str) -> bool:
    return FREE_KEY.search(name) is not None


def _is_manifest(name: str, value: str) -> bool:
    """True for another tool's annotation that may contain a whole manifest."""
    return not name.startswith(OWN_ANNOTATIONS) and (
        value.lstrip().startswith(("{", "[")) or len(value) > ANNOTATION_MAX
    )
