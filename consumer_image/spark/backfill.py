"""The file that spark-submit runs in a Backfill's driver; it takes a file, not a module."""

import sys

from fleet_consumer.backfill.cli import main

if __name__ == "__main__":
    sys.exit(main())
