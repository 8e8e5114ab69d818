"""Decision records are one page each, and listed in the index."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).parents[2]
DECISIONS: Final = ROOT / "docs" / "decisions"
RECORDS: Final = sorted(DECISIONS.glob("[0-9]*.md"))
HEADINGS: Final = ["Context", "Decision", "Evidence", "What would change our mind"]
WORDS_MAX: Final = 300
STATUS: Final = re.compile(r"^Status: (accepted|replaced by \[\d{4}\]\([\w-]+\.md\))(?:[.;] .+)?$", re.MULTILINE)

of_each_record = pytest.mark.parametrize("record", RECORDS, ids=lambda record: record.stem)


def test_numbers_are_unique() -> None:
    numbers = [record.name[:4] for record in RECORDS]
    assert len(numbers) > 50
    assert len(numbers) == len(set(numbers))


@of_each_record
def test_record_has_the_four_sections(record: Path) -> None:
    text = record.read_text()
    assert re.findall(r"^## (.*)$", text, re.MULTILINE) == HEADINGS
    assert text.startswith(f"# {record.name[:4]} ")
    assert len(STATUS.findall(text)) == 1


@of_each_record
def test_record_fits_a_page(record: Path) -> None:
    assert len(record.read_text().split()) <= WORDS_MAX


@of_each_record
def test_record_is_in_the_index(record: Path) -> None:
    """A row has the record's own title and status."""
    text = record.read_text()
    title = text.partition("\n")[0].removeprefix("# ")
    status = STATUS.findall(text)[0]
    assert f"| [{title}]({record.name}) | {status} |\n" in (DECISIONS / "README.md").read_text()


def test_index_lists_nothing_else() -> None:
    listed = re.findall(r"^\| \[.*\]\(([\w-]+\.md)\) \|", (DECISIONS / "README.md").read_text(), re.MULTILINE)
    assert listed == [record.name for record in RECORDS]


def test_code_names_each_record() -> None:
    """In a docstring or a comment of the module that it explains, or in a page."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True)
    paths = [ROOT / name for name in listed.stdout.split("\0") if name and not name.startswith("docs/decisions/")]
    suffixes = {".py", ".md", ".yaml", ".tpl", ".sh", ".spark", ""}
    sources = [path.read_text() for path in paths if path.is_file() and path.suffix in suffixes]
    named = set(re.findall(r"decisions/(\d{4})", "\n".join(sources)))
    assert [record.name for record in RECORDS if record.name[:4] not in named] == []
