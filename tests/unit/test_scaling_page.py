"""Commands of docs/scaling.md that need no cluster, as written, and the YAML of its ConsumerGroup."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
import yaml

from bench.simulate.__main__ import EXIT_OK, main
from fleet_operator.api.v1alpha1.consumergroup import Scaling
from fleet_operator.planning.scaling import decision as limits
from fleet_operator.planning.scaling.schedules import find_refused

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "scaling.md").read_text()
COMMANDS = re.findall(r"^python -m bench.simulate (.*)$", PAGE, re.MULTILINE)


def test_page_has_commands() -> None:
    assert len(COMMANDS) >= 4


@pytest.mark.parametrize("command", COMMANDS)
def test_simulation_runs_as_written(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    monkeypatch.chdir(tmp_path)
    assert main(shlex.split(command)) == EXIT_OK
    assert "\nfleet " in capsys.readouterr().out


@pytest.mark.parametrize("place", [0, 1])
def test_example_is_a_spec(place: int) -> None:
    block = re.findall(r"^```yaml\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)[place]
    scaling = Scaling.model_validate(yaml.safe_load(block)["spec"]["scaling"])
    assert find_refused(scaling) is None


def test_every_word_of_the_limit_is_explained() -> None:
    words = {value for name, value in vars(limits).items() if name.isupper() and isinstance(value, str)}
    explained = set(re.findall(r"`(\w+)`", "\n".join(line for line in PAGE.splitlines() if line.startswith("| `"))))
    assert words <= explained
