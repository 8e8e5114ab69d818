"""The words of code and pages: private words that gave way, long sentences, and verbs with many meanings."""

from __future__ import annotations

import ast
import collections
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tests.unit.test_house_rules import ROOT, syntax, tracked

GIVE_WAY: Final = {
    "glances?": "poll, state poll",
    r"look(?:s|ed|ing)?(?!\s+(?:[\w`]+\s+){0,4}(?:up|for|like|truncated|the same)\b)": "poll, check, observation",
    "lens(es)?": "cached inputs",
    "hops?|hopped": "retry publish",
    "campaigns?": "rollout",
    "sightings?": "metadata view",
    "doubt(s|ed|ful|fully)?": "unconfirmed, suspected outage",
    "cautions?": "crash guard",
    "trails?": "history",
    "believ(e|es|ed)": "last known, trusted",
    "wish(es|ed)?": "request, requeue delay",
    "anew": "again",
    "besides?": "next to, with, compared with, except",
    "amid": "during, within",
    "mend(s|ed|ing)?": "correct, fix",
    "(?<!error )(?<!help )texts": "strings",
    "strangers?": "unowned object",
    "standings?": "rollout status",
    "news": "changes",
    "for ever": "permanently, indefinitely",
    "by itself|by themselves": "automatically, on its own, alone",
    "is no (number|text|name|list|time|object|string)": "must be a …",
}
"""Words that a Kafka or Kubernetes engineer reads twice, as regular expressions, and words to use in their place."""
WORDS: Final = re.compile(rf"(?<![\w/.-])({'|'.join(GIVE_WAY)})(?![\w/-])", re.IGNORECASE)
EXCEPTIONS: Final[dict[str, str]] = {}
"""Files that keep such words, and the reason."""
SENTENCE_WORDS_MAX: Final = 40
DEFINITIONS_MAX: Final = 8
COMMON: Final = {
    "close": "the protocol of contextlib.closing",
    "start": "of threads and processes",
    "stop": "of threads and processes",
    "run": "of threads, jobs and commands",
    "_run": "the body of a thread",
    "add": "of collections",
    "send": "of connections",
    "assign": "of assignors",
    "handle": "of callers of handlers: records in, outcomes out",
    "discard_partitions": "of parts of a worker that keep state for each partition",
}
"""Methods with more definitions, each of one meaning."""
CODE: Final = re.compile(r"^```.*?^```|^ {4}\S[^\n]*|<!--.*?-->", re.DOTALL | re.MULTILINE)
INLINE: Final = re.compile(r"`[^`\n]+`|\]\([^)]*\)")


def prose_of_code(path: Path) -> Iterator[tuple[int, str]]:
    """The strings and comments of a module, with their lines; strings without a space are names."""
    for token in tokenize.generate_tokens(io.StringIO(path.read_text()).readline):
        if token.type == tokenize.COMMENT or (token.type == tokenize.STRING and " " in token.string):
            yield token.start[0], re.sub(r"``?[^`]+``?|\{[^{}]*\}", "x", token.string)


def prose_of_page(path: Path) -> str:
    """A page without its code, with the lines kept."""
    text = CODE.sub(lambda found: "\n" * found[0].count("\n"), path.read_text())
    return INLINE.sub("x", text)


def sentences(page: str) -> Iterator[str]:
    """The sentences of headings, paragraphs, list items and cells of tables; a semicolon ends one."""
    for block in re.split(r"\n\s*\n|\n(?=\s*(?:[-*]|\d+\.) )|\||^#.*$", page, flags=re.MULTILINE):
        yield from re.split(r"(?:(?<=[.!?:])|(?<=[.!?:]\*\*))\s+(?=[A-Z*`([x])|;\s", block.strip())


def found_words(name: str, number: int, text: str) -> list[str]:
    return [f"{name}:{number + text[: found.start()].count(chr(10))}: {found[0]}" for found in WORDS.finditer(text)]


def test_private_words_have_given_way() -> None:
    bad = []
    for path in [*tracked("*.py"), *tracked("*.md"), *tracked("crds/*.yaml"), *tracked("charts/*.yaml")]:
        name = str(path.relative_to(ROOT))
        if name in EXCEPTIONS or path == Path(__file__):
            continue
        parts = prose_of_code(path) if path.suffix == ".py" else [(1, prose_of_page(path))]
        bad += [each for number, text in parts for each in found_words(name, number, text)]
    assert bad == []


def test_sentences_of_pages_are_short() -> None:
    bad = []
    for path in tracked("*.md"):
        long = (each for each in sentences(prose_of_page(path)) if len(each.split()) > SENTENCE_WORDS_MAX)
        bad += [f"{path.relative_to(ROOT)}: {sentence[:100]}" for sentence in long]
    assert bad == []


def test_a_common_verb_names_one_thing() -> None:
    """ "Go to definition" of a method leads to one family."""
    defined = collections.Counter[str]()
    for path in [*tracked("consumer_image/*.py"), *tracked("operator/*.py")]:
        for node in ast.walk(syntax(path)):
            if isinstance(node, ast.ClassDef):
                methods = [each.name for each in node.body if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)]
                defined.update(set(methods))
    many = {name for name, count in defined.items() if count > DEFINITIONS_MAX and not name.startswith("__")}
    assert many == set(COMMON) & many | set(), f"rename, or give a reason: {sorted(many - set(COMMON))}"
    assert not set(COMMON) - many, f"no longer common: {sorted(set(COMMON) - many)}"
