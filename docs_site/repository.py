"""Pages of the site at their paths in the repository, so that links between them work in both places.

MkDocs reads one folder, and the pages link to files outside it. This hook gives MkDocs the linked files of the whole
repository, with a page for each folder that a link may name (docs/decisions/0069-site.md).
"""

from __future__ import annotations

import re
from pathlib import Path, PurePosixPath
from typing import Any, Final

from markdown import Markdown
from markdown.extensions import Extension
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT: Final = Path(__file__).resolve().parents[1]
PUBLISHED: Final = (
    "*.md",
    "LICENSE",
    "docs/**/*",
    "crds/*.yaml",
    "charts/consumer-fleet/values.yaml",
    "bench/results/*.md",
    "bench/results/*.svg",
    "examples/**/*",
)
NOT_PUBLISHED: Final = {"jars", "target", "__pycache__"}
"""Folders of build output."""
FENCED: Final = re.compile(r"(^ *```.*?^ *```$)", re.MULTILINE | re.DOTALL)
TO_FOLDER: Final = re.compile(r"(?<=\]\()(?!\w+:)([\w./-]+)/(?=\))")


class NestedLists(Extension):  # type: ignore[misc]  # Python-Markdown has no types
    """Lists nested by two or three spaces, as the pages have them; Python-Markdown needs four."""

    def extendMarkdown(self, md: Markdown) -> None:  # noqa: N802 - the name is Python-Markdown's
        """Rebuild the parser, which reads the number of spaces once."""
        md.tab_length = 2
        md.build_parser()


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Put the extension first, because it discards what others have registered before."""
    extensions: list[Any] = config.markdown_extensions
    extensions.insert(0, NestedLists())
    return config


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Replace the files of docs/ by those of the repository; the theme's files stay."""
    theme = [each for each in files if each.src_dir != config.docs_dir]
    found = published()
    ours = [File.generated(config, str(path), abs_src_path=str(ROOT / path)) for path in found]
    lists = [File.generated(config, f"{folder}/index.md", content=text) for folder, text in folders(found).items()]
    return Files([*theme, *ours, *lists])


def on_page_markdown(markdown: str, *, page: Page, **_: Any) -> str:
    """Point links to a folder at the folder's page."""
    here = (ROOT / page.file.src_uri).parent

    def to_page(link: re.Match[str]) -> str:
        return f"{link[1]}/{'README.md' if (here / link[1] / 'README.md').is_file() else 'index.md'}"

    parts = FENCED.split(markdown)
    parts[::2] = [TO_FOLDER.sub(to_page, part) for part in parts[::2]]
    return "".join(parts)


def published() -> list[PurePosixPath]:
    """Paths of the files of the site, relative to the repository."""
    paths = {path.relative_to(ROOT) for pattern in PUBLISHED for path in ROOT.glob(pattern) if path.is_file()}
    return sorted(PurePosixPath(path) for path in paths if not NOT_PUBLISHED & set(path.parts))


def folders(paths: list[PurePosixPath]) -> dict[str, str]:
    """Pages that list the files of a folder, for folders without a README."""
    own = {path.parent for path in paths if path.name == "README.md"}
    listed = {parent for path in paths for parent in path.parents if parent.name} - own
    pages = {}
    for folder in sorted(listed):
        names = [str(path.relative_to(folder)) for path in paths if folder in path.parents]
        pages[str(folder)] = "\n".join([f"# {folder}", "", *(f"- [{name}]({name})" for name in names), ""])
    return pages
