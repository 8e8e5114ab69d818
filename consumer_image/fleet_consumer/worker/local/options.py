"""Options of `fleet-consumer run --local`. Imports nothing heavy, so that `--help` answers at once."""

from __future__ import annotations

import argparse
from typing import Final

from fleet_consumer.contract.log import FORMATS, LEVELS
from fleet_consumer.worker.commands.options import add_connection_options

EXAMPLES: Final = """\
examples:
  # handle(record) of handler.py for each record of a topic, from the last committed offset
  fleet-consumer run --local handler.py --topic orders --bootstrap localhost:9092

  # a batch handler that writes to orders-done, only new records, four partitions at once
  fleet-consumer run --local handler.py:handle_batch --topic orders --bootstrap localhost:9092 \\
      --output orders-done --from latest --concurrency 4

  # every topic that matches, values decoded as JSON, under a group of your own
  fleet-consumer run --local handler.py --topic-pattern 'orders\\..*' --bootstrap localhost:9092 \\
      --group anna-tries --decode-value Json

  # a handler behind HTTP that already runs on this machine
  fleet-consumer run --local http://localhost:8000/records --topic orders --bootstrap localhost:9092

  # failed records are retried after 5, 5 and 30 seconds by a second process
  fleet-consumer run --local handler.py --topic orders --bootstrap localhost:9092 --retry 5s,5s,30s

  # failed records are retried by the RetryPolicy in a manifest file, with its rules and its budget
  fleet-consumer run --local handler.py --topic orders --bootstrap localhost:9092 --retry-policy fleet.yaml

Records that fail for good are written to _fleet.<group>.failed. Missing topics of the group (_fleet.<group>.*) are
created. Ctrl-C stops in order; the same command continues, also with waiting records.
"""


def add_local_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of `--local` to a parser."""
    parser.add_argument(
        "--local",
        metavar="HANDLER",
        help="run on this machine: FILE.py, FILE.py:callable (default: handle, or handle_batch if there is no handle), "
        "package.module:callable of the working directory, or the http:// address of a handler that runs here",
    )
    group = parser.add_argument_group("with --local")
    add_connection_options(group)
    group.add_argument("--topic", metavar="TOPIC", action="append", default=[], help="a topic; may be repeated")
    group.add_argument("--topic-pattern", metavar="REGEX", help="in place of --topic: all topics whose names match")
    group.add_argument("--group", metavar="ID", help="consumer group (default: local.<you>.<handler>)")
    group.add_argument(
        "--from",
        dest="start",
        choices=("earliest", "latest"),
        default="earliest",
        help="where a group without commits begins (default: earliest)",
    )
    group.add_argument(
        "--output", metavar="TOPIC", action="append", default=[], help="a topic the handler may write to"
    )
    group.add_argument(
        "--failed-topic", metavar="TOPIC", help="topic of failed records (default: _fleet.<group>.failed)"
    )
    group.add_argument("--retry", metavar="DELAY,…", help="retry after these delays, such as 5s,5s,30s")
    group.add_argument(
        "--retry-policy", metavar="FILE", help="in place of --retry: a manifest file with one RetryPolicy"
    )
    group.add_argument("--concurrency", metavar="N", type=int, default=1, help="handler calls at once (default: 1)")
    group.add_argument("--timeout", metavar="SECONDS", type=int, default=60, help="for one call (default: 60)")
    for field in ("key", "value"):
        group.add_argument(
            f"--decode-{field}", choices=("Bytes", "String", "Json"), default="Bytes", help="default: Bytes"
        )
    group.add_argument("--log-level", choices=LEVELS, default="Info", help="default: %(default)s")
    group.add_argument(
        "--log-format", choices=FORMATS, default="Text", help="Json as in a cluster (default: %(default)s)"
    )
    group.add_argument("--assignor", metavar="NAME", action="append", help="default: cooperative-sticky")
    group.add_argument("--batch", action="store_true", help="send batches to a handler behind HTTP")
