"""Writes each dashboard to a JSON file in the chart."""

from pathlib import Path
from typing import Final

from dashboards import fleet, fleets, operator
from dashboards.panels import as_json

FOLDER: Final = Path(__file__).resolve().parents[1] / "charts" / "consumer-fleet" / "dashboards"
BUILDERS: Final = {"fleets": fleets.build, "fleet": fleet.build, "operator": operator.build}


def files() -> dict[str, str]:
    """Return the content of each dashboard file by file name."""
    return {f"consumer-fleet-{name}.json": as_json(build()) for name, build in BUILDERS.items()}


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    for name, content in files().items():
        (FOLDER / name).write_text(content)
        print(FOLDER / name)


if __name__ == "__main__":
    main()
