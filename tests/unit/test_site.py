"""The site of the documents: complete, without a broken link, without another host, and with the pages' structure."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path

import pytest
from markdown_it import MarkdownIt

ROOT = Path(__file__).parents[2]
CONFIG = (ROOT / "mkdocs.yml").read_text()
NAVIGATION = set(re.findall(r"^ {6}- .+: (\S+)$", CONFIG, re.MULTILINE))
BUILD_S = 120
LOADED = {"audio", "embed", "iframe", "img", "input", "object", "script", "source", "track", "video"}
STRUCTURE = {"h1", "h2", "h3", "h4", "ul", "ol", "li", "p", "pre", "tr", "th", "td", "strong", "em", "a", "img"}
PAGES = [
    path.relative_to(ROOT) for pattern in ("*.md", "docs/**/*.md", "bench/results/*.md") for path in ROOT.glob(pattern)
]


def build(root: Path, out: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(out)],
        cwd=root,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        timeout=BUILD_S,
    )


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("site")
    done = build(ROOT, out)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "WARNING" not in done.stdout + done.stderr
    return out


class Loads(HTMLParser):
    """Addresses on other hosts that a browser fetches to show a page; `tags` counts the elements within the article."""

    def __init__(self) -> None:
        super().__init__()
        self.foreign: list[str] = []
        self.tags: Counter[str] = Counter()
        self._depth = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = {name: value or "" for name, value in attrs}
        navigates = tag == "link" and found.get("rel") in ("canonical", "prev", "next")
        if tag in LOADED or (tag == "link" and not navigates):
            values = [found.get(name, "") for name in ("src", "srcset", "href", "data", "poster")]
            self.foreign += [value for value in values if re.match(r"(?:https?:)?//", value)]
        self._depth += tag == "article"
        marker = found.get("class") == "headerlink" or found.get("id", "").startswith("__codelineno")
        if self._depth and tag in STRUCTURE and not marker:
            self.tags[tag] += 1

    def handle_endtag(self, tag: str) -> None:
        self._depth -= tag == "article"


def read(text: str) -> Loads:
    parser = Loads()
    parser.feed(text)
    return parser


@pytest.mark.parametrize("page", sorted(str(path.relative_to(ROOT)) for path in (ROOT / "docs").glob("*.md")))
def test_page_has_a_line_in_the_navigation_of_mkdocs_yml(page: str) -> None:
    assert page in NAVIGATION, f"add a line `- Title: {page}` to `nav` in mkdocs.yml, under the task that it helps with"


def test_make_docs_builds_strictly() -> None:
    assert re.search(r"^strict: true$", CONFIG, re.MULTILINE)
    assert re.search(r"^docs: venv .*\n\t.*mkdocs build", (ROOT / "Makefile").read_text(), re.MULTILINE)


def test_no_page_loads_anything_from_another_host(site: Path) -> None:
    pages = list(site.rglob("*.html"))
    assert len(pages) >= len(PAGES)
    for page in pages:
        text = page.read_text()
        assert read(text).foreign == [], page.name
        assert 'class="mermaid"' not in text, f"{page.name}: the theme would fetch a script to draw this"
    for sheet in site.rglob("*.css"):
        assert re.findall(r"(?:@import|url\()\s*[\"']?(?:https?:)?//[^)\"']*", sheet.read_text()) == [], sheet.name


def test_loads_from_other_hosts_would_be_seen() -> None:
    page = '<link rel="stylesheet" href="//fonts.example/a.css"><script src="https://cdn.example/b.js"></script>'
    assert read(page).foreign == ["//fonts.example/a.css", "https://cdn.example/b.js"]


@pytest.mark.parametrize("page", PAGES, ids=str)
def test_page_has_the_structure_that_commonmark_gives_it(page: Path, site: Path) -> None:
    """The site's renderer nests lists and reads tables by other rules than the forge that shows the repository."""
    built = site / (page.parent / "index.html" if page.name == "README.md" else page.with_suffix(".html"))
    rendered = MarkdownIt("commonmark").enable("table").render((ROOT / page).read_text())
    wanted = read(f"<article>{rendered}</article>").tags
    found = read(built.read_text()).tags
    assert {tag: found[tag] for tag in STRUCTURE} == {tag: wanted[tag] for tag in STRUCTURE}


def test_broken_links_and_forgotten_pages_fail_the_build(tmp_path: Path) -> None:
    """The settings of mkdocs.yml, on a repository of two pages."""
    for name in ("mkdocs.yml", "docs_site/repository.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    (tmp_path / "docs").mkdir()
    (tmp_path / "README.md").write_text("# Readme\n")
    page = "# Page\n\n[a](../gone.md) [b](../README.md#gone) [c](../gone/) [d](#gone) [e](../README.md#readme)\n"
    (tmp_path / "docs" / "forgotten.md").write_text(page)
    done = build(tmp_path, tmp_path / "site")
    assert done.returncode == 1
    said = done.stdout + done.stderr
    assert 'not included in the "nav" configuration:\n  - docs/forgotten.md' in said
    for link in ("'../gone.md'", "'../README.md#gone'", "'../gone/index.md'", "'#gone'"):
        assert f"Doc file 'docs/forgotten.md' contains a link {link}" in said
    assert "#readme" not in said
