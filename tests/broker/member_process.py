"""A member as a process that can be killed: it notes its records in a file and commits nothing.

Its session is short, because tests wait for its end.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from fleet_consumer import Consumer
from tests.broker.members import settings

SESSION_MS = 3_000


def main(bootstrap: str, group: str, topic: str, log: str) -> None:
    consumer = Consumer(settings(bootstrap, group, session_timeout_ms=SESSION_MS))
    with Path(log).open("a", buffering=1) as out:
        consumer.subscribe([topic], on_assigned=lambda parts: print("assigned", len(parts), file=out))
        while True:
            records = consumer.poll(1.0)
            if records:
                print("records", len(records), file=out)


if __name__ == "__main__":
    main(*sys.argv[1:])
