"""Each alert of the chart fires and resolves, by promtool's unit tests of rules; scenes.yaml has a scene for each."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.monitoring.programs import PROMETHEUS, ensure_monitoring
from tests.monitoring.queries import RULES, alerts

SCENES: dict[str, dict[str, Any]] = yaml.safe_load((Path(__file__).parent / "scenes.yaml").read_text())


def promtool(*arguments: str) -> str:
    command = [str(ensure_monitoring(PROMETHEUS) / "promtool"), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_rules_are_valid() -> None:
    """Without duplicates, and with templates that Prometheus can parse."""
    assert f"{len(alerts())} rules found" in promtool("check", "rules", "--lint=all", "--lint-fatal", str(RULES))


def test_each_alert_has_a_scene() -> None:
    assert set(SCENES) == set(alerts())


@pytest.mark.parametrize("scene", SCENES)
def test_alert_fires_and_resolves(scene: str, tmp_path: Path) -> None:
    wanted = SCENES[scene]
    assert wanted["fires"] < wanted["resolves"]
    test = {
        "rule_files": [str(RULES)],
        "evaluation_interval": "1m",
        "tests": [
            {
                "interval": "1m",
                "input_series": [
                    {"series": series, "values": str(values)} for series, values in wanted["series"].items()
                ],
                "alert_rule_test": [
                    {"eval_time": "0m", "alertname": scene, "exp_alerts": []},
                    {"eval_time": f"{wanted['fires']}m", "alertname": scene, "exp_alerts": [firing(scene, wanted)]},
                    {"eval_time": f"{wanted['resolves']}m", "alertname": scene, "exp_alerts": []},
                ],
            }
        ],
    }
    file = tmp_path / "test.yaml"
    file.write_text(yaml.safe_dump(test))
    promtool("test", "rules", str(file))


def firing(name: str, scene: dict[str, Any]) -> dict[str, Any]:
    """The alert as it fires: its templates with the scene's labels and value."""
    rule, labels = alerts()[name], scene["labels"]

    def text(template: str) -> str:
        with_labels = re.sub(r"{{ \$labels\.(\w+) }}", lambda found: labels[found[1]], template)
        return re.sub(r"{{ \$value [^}]*}}", lambda found: scene["value"], with_labels)

    annotations = {key: text(template) for key, template in rule["annotations"].items()}
    return {"exp_labels": {**labels, **rule["labels"]}, "exp_annotations": annotations}
