"""Write the generated parts of `crds/`; with the path of an OpenAPI document, take over its types first."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from tests.core_types.document import DOCUMENT, read, reduced
from tests.core_types.writing import CRDS, generated


def main(arguments: list[str]) -> None:
    for path in map(Path, arguments):
        DOCUMENT.write_text(json.dumps(reduced(json.loads(path.read_text())), indent=1) + "\n")
    schemas = read()
    for path in sorted(CRDS.glob("*.yaml")):
        path.write_text(generated(path.read_text(), schemas))


if __name__ == "__main__":
    main(sys.argv[1:])
