"""The explanations are data of the installed package."""

from __future__ import annotations

import tomllib

from tests.unit.test_house_rules import ROOT


def test_data_files_of_the_operator_are_in_its_wheel() -> None:
    package = ROOT / "operator/fleet_operator"
    setuptools = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    files = (path for path in package.rglob("*") if path.is_file() and path.suffix not in (".py", ".pyc"))
    found = {str(path.relative_to(package)) for path in files}
    patterns = setuptools["package-data"]["fleet_operator"]
    packaged = {str(path.relative_to(package)) for pattern in patterns for path in package.glob(pattern)}
    assert found == packaged
