"""The script of a Backfill's driver; spark-submit runs a file, not a module."""

import sys

from fleet_consumer.backfill.cli import main

if __name__ == "__main__":
    sys.exit(main())
