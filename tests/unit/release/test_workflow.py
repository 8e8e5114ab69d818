"""Commands of releases in pages, the Makefile and the forge's workflow: the parser accepts them."""

from __future__ import annotations

import argparse
import re
import shlex
from pathlib import Path

import pytest
import yaml

from e2e.local_cluster.images import CONSUMER, OPERATOR, SPARK
from release.artefacts import BUNDLE, PUBLIC_KEY, SUMS
from release.cli import _parser
from release.version import ROOT

WORKFLOW = ROOT / ".github/workflows/release.yaml"
FILES = (WORKFLOW, ROOT / "Makefile", ROOT / "docs/release.md")
COMMAND = re.compile(r"(?m)^.*(?:python|\$\(PY\)) -m release (.*?)\)?$")


def commands() -> list[list[str]]:
    found = [line for file in FILES for line in COMMAND.findall(file.read_text()) if "`" not in line]
    return [shlex.split(line) for line in found]


@pytest.mark.parametrize("words", commands(), ids=" ".join)
def test_documented_commands_parse(words: list[str]) -> None:
    parsed: argparse.Namespace = _parser().parse_args(words)
    assert callable(parsed.run)


def test_commands_are_found_in_every_file() -> None:
    assert {words[0] for words in commands()} == {"version", "tag", "build", "publish", "verify"}
    assert all(COMMAND.search(file.read_text()) for file in FILES)


def test_workflow_builds_the_images_of_the_release_and_tells_that_it_was_not_run() -> None:
    """Its names and Dockerfiles are those that `make images` builds."""
    text = WORKFLOW.read_text()
    assert "NOT RUN YET" in text
    steps = yaml.safe_load(text)["jobs"]["release"]["steps"]
    (build,) = [step["run"] for step in steps if "buildx build" in step.get("run", "")]
    listed = [tuple(line.split()) for line in build.splitlines() if line.startswith("consumer-fleet-")]
    assert listed == [(image.name, image.dockerfile) for image in (OPERATOR, CONSUMER, SPARK)]


def test_workflow_verifies_with_the_given_key_and_attaches_what_the_page_promises() -> None:
    """The public key of the signing key would verify any signature."""
    job = yaml.safe_load(WORKFLOW.read_text())["jobs"]["release"]
    assert job["environment"] == "release"
    (check,) = [step for step in job["steps"] if "release verify" in step.get("run", "")]
    (name,) = [name for name, value in check["env"].items() if value == "${{ vars.COSIGN_PUBLIC_KEY }}"]
    assert f'"${name}" > dist/cosign.pub' in check["run"]
    assert check["run"].rstrip().endswith("--key dist/cosign.pub")
    upload = job["steps"][-1]["run"].partition("gh release upload")[2].split()
    attached = {Path(word).name for word in upload if word.startswith("dist/")}
    page = (ROOT / "docs/release.md").read_text()
    (promised,) = re.findall(r"the release's page at the forge has (.*?)\. ", page)
    assert attached == set(re.findall(r"`(.*?)`", promised)) == {PUBLIC_KEY, SUMS, BUNDLE}


def test_page_resolves_a_tag_once() -> None:
    """Everything after that is by digest."""
    section = (ROOT / "docs/release.md").read_text().partition("## Verify a release")[2].partition("\n## ")[0]
    lines = [line for line in section.splitlines() if re.search(r"^(files=|cosign verify |oras pull )", line)]
    assert [line.split()[0].partition("=")[0] for line in lines] == ["files", "cosign", "oras"]
    assert "@$(oras resolve " in lines[0]
    assert all('"$files"' in line for line in lines[1:])
