"""`python -m pages` writes the generated pages. With `--check`, it only names the pages that are out of date."""

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import yaml

from fleet_operator.api.v1alpha1.explanations import GROUPS
from pages.conditions import conditions_page
from pages.fields import fields_page

ROOT: Final = Path(__file__).resolve().parents[1]
DOCS: Final = ROOT / "docs"
KINDS: Final = ("kafkaclusters", "consumergroups", "retrypolicies", "redrives", "offsetresets", "backfills")
"""Plural names of the kinds that users create, in the order of the page."""


def generated() -> Mapping[Path, str]:
    """Return the content of each generated page by path."""
    named = {each.page.partition("#")[0] for group in GROUPS.values() for each in group}
    crds = [yaml.safe_load((ROOT / f"crds/consumerfleet.io_{kind}.yaml").read_text()) for kind in KINDS]
    return {
        DOCS / "conditions.md": conditions_page(GROUPS, {name: (DOCS / name).read_text() for name in named}),
        DOCS / "fields.md": fields_page(crds),
    }


def main(arguments: list[str]) -> int:
    options = argparse.ArgumentParser(prog="python -m pages", description="Generate pages of docs/ from the code.")
    options.add_argument("--check", action="store_true", help="write nothing; exit with 1 if a page is out of date")
    check = options.parse_args(arguments).check
    differ = {path: text for path, text in generated().items() if not path.exists() or path.read_text() != text}
    for path, text in differ.items():
        if not check:
            path.write_text(text)
        print(f"{path.relative_to(ROOT)}: {'out of date, run `make pages`' if check else 'written'}")
    return 1 if check and differ else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
