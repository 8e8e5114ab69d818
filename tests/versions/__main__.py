"""Tests of tests/broker on older versions of Kafka, with a table of the results: `python -m tests.versions`.

Without options it runs the chosen files on all versions. Tests that need a newer version must fail: one that passes is
an error of the list in tests/versions/lanes.py.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tests.support.suites import Outcome, Suite, repeat_failed, run_suite
from tests.versions.lanes import LANES, SHORT, WHOLE, table
from tests.versions.pins import VARIABLE

PLUGIN: Final = ("-p", "tests.versions.pins")


def run(version: str, paths: Sequence[str]) -> Outcome:
    """Run the tests on one version. Failed ones are repeated alone, as in `tests.run`."""
    print(f"\n===== Kafka {version} =====", flush=True)
    os.environ[VARIABLE] = version
    suite = Suite(f"kafka-{version}", tuple(paths), limit_s=0)
    with tempfile.TemporaryDirectory(prefix="fleet-versions-") as scratch:
        outcome = run_suite(suite, PLUGIN, Path(scratch))
        repeat_failed(suite, PLUGIN, Path(scratch), outcome)
    return outcome


def main(arguments: Sequence[str]) -> int:
    """Run the versions one after the other, and print the table; returns 1 if a test failed or none ran."""
    parser = argparse.ArgumentParser(prog="python -m tests.versions", description=__doc__)
    parser.add_argument("--kafka", action="append", choices=list(LANES), help="only this version; may be repeated")
    parser.add_argument("--whole", action="store_true", help="the whole folder tests/broker: ten minutes or more each")
    parser.add_argument("paths", nargs="*", help="files or tests to run in place of the chosen ones")
    options = parser.parse_args(arguments)
    paths = options.paths or (WHOLE if options.whole else SHORT)
    outcomes = {version: run(version, paths) for version in options.kafka or LANES}
    print("\n" + "\n".join(table(outcomes)), flush=True)
    return int(any(each.exit_code or not each.passed for each in outcomes.values()))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
