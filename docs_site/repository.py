"""MkDocs hook: publishes pages at their paths in the repository, so that links work on the site and on GitHub.

MkDocs reads only one folder, but the pages link to files outside this folder. The hook adds the linked files of the
whole repository, and a page for each folder that a link may refer to (docs/decisions/0069-site.md).
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
"""Names of folders with build output. Their files are not published."""
FENCED: Final = re.compile(r"(^ *```.*?^ *```$)", re.MULTILINE | re.DOTALL)
TO_FOLDER: Final = re.compile(r"(?<=\]\()(?!\w+:)([\w./-]+)/(?=\))")


class NestedLists(Extension):  # type: ignore[misc]  # Python-Markdown has no types
    """Extension for lists that are nested by two or three spaces, as in the pages. Python-Markdown requires four."""

    def extendMarkdown(self, md: Markdown) -> None:  # noqa: N802 - the name is Python-Markdown's
        """Set the number of spaces and rebuild the parser, because it reads this number only once."""
        md.tab_length = 2
        md.build_parser()


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Insert `NestedLists` first, because it discards the registrations of earlier extensions."""
    extensions: list[Any] = config.markdown_extensions
    extensions.insert(0, NestedLists())
    return config


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Replace the files of docs/ by the published files of the repository. The theme's files are kept."""
    theme = [each for each in files if each.src_dir != config.docs_dir]
    found = published()
    ours = [File.generated(config, str(path), abs_src_path=str(ROOT / path)) for path in found]
    lists = [File.generated(config, f"{folder}/index.md", content=text) for folder, text in folders(found).items()]
    return Files([*theme, *ours, *lists])


def on_page_markdown(markdown: str, *, page: Page, **_: Any) -> str:
    """Change links to folders into links to the pages of the folders."""
    here = (ROOT / page.file.src_uri).parent

    def to_page(link: re.Match[str]) -> str:
        return f"{link[1]}/{'README.md' if (here / link[1] / 'README.md').is_file() else 'index.md'}"

    parts = FENCED.split(markdown)
    parts[::2] = [TO_FOLDER.sub(to_page, part) for part in parts[::2]]
    return "".join(parts)


def published() -> list[PurePosixPath]:
    """Return the paths of all files to publish, relative to the repository."""
    paths = {path.relative_to(ROOT) for pattern in PUBLISHED for path in ROOT.glob(pattern) if path.is_file()}
    return sorted(PurePosixPath(path) for path in paths if not NOT_PUBLISHED & set(path.parts))


def folders(paths: list[PurePosixPath]) -> dict[str, str]:
    """Return a page for each folder without a README. The page lists the files of the folder."""
    own = {path.parent for path in paths if path.name == "README.md"}
    listed = {parent for path in paths for parent in path.parents if parent.name} - own
    pages = {}
    for folder in sorted(listed):
        names = [str(path.relative_to(folder)) for path in paths if folder in path.parents]
        pages[str(folder)] = "\n".join([f"# {folder}", "", *(f"- [{name}]({name})" for name in names), ""])
    return pages
