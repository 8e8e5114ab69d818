"""Copies the CRDs of `crds/` into the chart as gated templates, and the version of `pyproject.toml` into the chart.

Helm never upgrades what lies in a chart's own `crds` folder, hence templates: `crds.enabled` installs and upgrades
them, `crds.keep` leaves them (and with them every ConsumerGroup) when the release is removed. A test fails when the
copies differ from their originals; run `python -m charts.sync` then.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
CRDS: Final = ROOT / "crds"
CHART: Final = ROOT / "charts" / "consumer-fleet"
TEMPLATES: Final = CHART / "templates"
VERSIONED: Final = {
    CHART / "Chart.yaml": r'(?m)^((?:version|appVersion): "?)[^"\n]+',
    CHART / "values.yaml": r"(?m)^( *image: consumer-fleet-(?:operator|consumer|spark):)\S+",
}
"""Files that repeat the version, and the text before it."""

HEAD: Final = """\
{{- /* A copy of crds/NAME, made by `python -m charts.sync`. Change the original. */}}
{{- if .Values.crds.enabled }}
"""
KEEP: Final = """\
  {{- if .Values.crds.keep }}
  annotations:
    helm.sh/resource-policy: keep
    argocd.argoproj.io/sync-options: Prune=false,Delete=false
  {{- end }}
"""
"""Argo CD takes Helm's policy as a bar to deletion with the application, not to pruning, hence its own option."""
TAIL: Final = "{{- end }}\n"
METADATA: Final = "metadata:\n"


def template_of(crd: Path) -> str:
    """The chart template of one CRD. Raises ValueError where the text could mean something to Helm."""
    text = crd.read_text(encoding="utf-8")
    if "{{" in text or "}}" in text:
        raise ValueError(f"{crd.name} contains braces that Helm would take for its own")
    before, found, after = text.partition(METADATA)
    if not found or "annotations:\n" in after.split("spec:\n", 1)[0]:
        raise ValueError(f"{crd.name} must have metadata without annotations")
    return HEAD.replace("NAME", crd.name) + before + METADATA + KEEP + after + TAIL


def templates() -> dict[Path, str]:
    """Every template that the chart must have, by its path."""
    return {
        TEMPLATES / f"crd-{crd.stem.partition('_')[2]}.yaml": template_of(crd) for crd in sorted(CRDS.glob("*.yaml"))
    }


def versioned() -> dict[Path, str]:
    """Every file of the chart that repeats the version of the distribution, as it must be."""
    version = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    return {
        path: re.sub(pattern, rf"\g<1>{version}", path.read_text(encoding="utf-8"))
        for path, pattern in VERSIONED.items()
    }


def main() -> None:
    """Write the templates and versions, and remove templates whose CRD is gone."""
    wanted = templates() | versioned()
    for path in TEMPLATES.glob("crd-*.yaml"):
        if path not in wanted:
            path.unlink()
    for path, text in wanted.items():
        path.write_text(text, encoding="utf-8")
        print(path.relative_to(ROOT))


if __name__ == "__main__":
    main()
