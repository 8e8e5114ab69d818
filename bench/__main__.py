"""`python -m bench`: every benchmark, one after the other."""

from __future__ import annotations

import sys

from bench import throughput

if __name__ == "__main__":
    sys.exit(throughput.main(sys.argv[1:]))
