"""`fleet-consumer run --local`: runs a handler on the user's machine as in a worker's pod.

The options are converted to the settings that the operator would write. The check and the worker are the same as in a
pod. This module creates the managed topics. If their creation fails, nothing starts, because failed records would have
no topic. With a retry policy, a second process is the retry worker (`retries`).
"""

import argparse
import ast
import getpass
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TextIO
from urllib.parse import urlsplit

from fleet_consumer.clock import SystemClock
from fleet_consumer.contract import naming
from fleet_consumer.contract.pod import EXIT_INTERRUPTED, EXIT_OK, EXIT_SURROUNDINGS
from fleet_consumer.contract.policies import render_policies
from fleet_consumer.contract.section import SettingsInvalid
from fleet_consumer.contract.worker_config import VERSION, parse_config
from fleet_consumer.worker.commands.check import CheckResult, examine
from fleet_consumer.worker.commands.options import connection_of
from fleet_consumer.worker.config.settings import connection_settings
from fleet_consumer.worker.consume.lags import lag_of
from fleet_consumer.worker.local.policy import LocalPolicy, policy_of
from fleet_consumer.worker.local.retries import Counts, RetryProcess, Waiting, end_main_thread, prepare
from fleet_consumer.worker.local.topics import Managed, TopicsUnusable, prepare_topics
from fleet_consumer.worker.logs import ERASE_LINE
from fleet_consumer.worker.member import WorkerState, current_error
from fleet_consumer.worker.printed import Output, outlive_readers
from fleet_consumer.worker.process import run_worker
from fleet_consumer.worker.session import Session
from fleet_consumer.worker.stats import Stats

COMMIT_S: Final = 1
"""Commit interval in seconds. It is shorter than in a cluster, because the displayed number of waiting records is
computed from commits."""

TERMINAL_EVERY_S: Final = 1.0
PLAIN_EVERY_S: Final = 10.0
"""Interval of the progress line in seconds if standard error is not a terminal. On a terminal, the interval is
`TERMINAL_EVERY_S`, and each line overwrites the previous line."""


def run_local(options: argparse.Namespace, environment: Mapping[str, str]) -> int:
    """Check the settings, create topics, run until Ctrl-C, and return the exit code. Errors are printed on one line."""
    try:
        return _run(options, environment)
    except KeyboardInterrupt:  # Ctrl-C before the worker handles signals itself
        return EXIT_INTERRUPTED


def _run(options: argparse.Namespace, environment: Mapping[str, str]) -> int:
    clock, outputs = SystemClock(), outlive_readers()
    try:
        settings, policy = settings_of(options), policy_of(options)
        config = parse_config(settings)
    except SettingsInvalid as refused:
        return _refuse(CheckResult.refused(refused))
    result = examine(config, clock)
    if result.exit_code != EXIT_OK:
        return _refuse(result)
    try:
        managed = prepare_topics(config, policy, clock)
    except TopicsUnusable as unusable:
        return _refuse(CheckResult(unusable.reason, str(unusable), EXIT_SURROUNDINGS))
    retries = "" if policy is None else f", retries after {', '.join(policy.sequence)}"
    print(
        f"fleet-consumer: {result.message}, group {config.group_id}{retries}, failed records to {config.failed_topic}",
        flush=True,
    )
    waiting = Waiting(connection_settings(config.brokers, config.name), config.group_id, managed.flow)
    if policy is not None:
        progress = ProgressPrinter(clock.monotonic, sys.stderr, outputs)
        return _run_with_retries(settings, policy, managed, waiting, environment, progress)
    left = waiting.ask() if managed.flow else 0
    if left:
        hint = "--retry or --retry-policy handles them"
        print(f"fleet-consumer: {left} records of this group wait for a retry: {hint}", flush=True)
    progress = ProgressPrinter(clock.monotonic, sys.stderr, outputs)
    code = run_worker(config, environment, local=progress)
    progress.end()
    return code


def _run_with_retries(
    settings: Mapping[str, Any],
    policy: LocalPolicy,
    managed: Managed,
    waiting: Waiting,
    environment: Mapping[str, str],
    progress: "ProgressPrinter",
) -> int:
    """Run both workers until Ctrl-C. The main worker stops first, so its last failed records can still be retried."""
    revision = naming.content_hash(policy.content)
    policies = render_policies(
        policy.name,
        {revision: policy.content},
        current=revision,
        delays=managed.delays,
        partitions=min(managed.flow.values()),
        max_message_bytes=managed.max_message_bytes,
    )
    with tempfile.TemporaryDirectory(prefix="fleet-consumer-") as folder:
        config = parse_config(prepare(Path(folder), settings, policies))
        with RetryProcess(Path(folder), config.drain_seconds, waiting) as retries:
            progress.retries = retries
            code = run_worker(config, environment, local=progress)
            ended = retries.stop()
        progress.end()
    return code or ended


def settings_of(options: argparse.Namespace) -> dict[str, Any]:
    """Convert the options to the content of worker.json. Raises SettingsInvalid."""
    connection = connection_of(options)
    if bool(options.topic) == (options.topic_pattern is not None):
        raise SettingsInvalid("--topic", "give --topic (once or more) or --topic-pattern")
    handler, stem = _handler_of(options)
    group_id = options.group or f"local.{_plain(_user())}.{_plain(stem)}"
    return {
        "version": VERSION,
        "namespace": "local",
        "name": stem,
        "uid": "local",
        "groupId": group_id,
        "revision": "local",
        "topics": options.topic,
        "topicPattern": options.topic_pattern,
        "connection": connection,
        "handler": {
            **handler,
            "timeoutSeconds": options.timeout,
            "decode": {"key": options.decode_key, "value": options.decode_value},
            "outputs": options.output,
            "concurrency": options.concurrency,
        },
        "consumer": {
            "protocol": "Classic",
            "assignors": options.assignor or ["cooperative-sticky"],
            "sessionTimeoutSeconds": 45,
            "heartbeatIntervalSeconds": 3,
            "staticMembership": False,
            "maxPollIntervalSeconds": 300,
            "maxPollRecords": 500,
            "autoOffsetReset": options.start.capitalize(),
            "isolationLevel": "ReadUncommitted",
            "commitIntervalSeconds": COMMIT_S,
            "properties": {},
        },
        "failedTopic": options.failed_topic or naming.failed_topic(group_id),
        "retry": None,
        "httpPort": 0,
        "skipFile": None,
        "log": {"level": options.log_level, "format": options.log_format},
        "drainSeconds": 20,
    }


def _handler_of(options: argparse.Namespace) -> tuple[dict[str, Any], str]:
    """Return the `handler` section of the settings, and the handler's name. Raises SettingsInvalid."""
    if options.local.startswith("http://"):
        url = urlsplit(options.local)
        if url.hostname not in ("localhost", "127.0.0.1") or url.port is None:
            raise SettingsInvalid("--local", f"{options.local!r} is not of the form http://localhost:PORT/PATH")
        http = {"port": url.port, "path": url.path or "/", "batch": options.batch}
        return {"python": None, "http": http}, f"http-{url.port}"
    name, _, attribute = options.local.partition(":")
    parts = name.split(".")
    if attribute and parts[-1] != "py" and all(part.isidentifier() for part in parts):
        # A callable in the same form as in a fleet's spec, imported from the working directory.
        return {"python": {"callable": options.local, "path": str(Path.cwd())}, "http": None}, parts[-1]
    file = Path(name).resolve()
    if file.suffix != ".py" or not file.stem.isidentifier():
        forms = "neither a file, such as handler.py, nor a callable, such as shop.orders:handle"
        raise SettingsInvalid("--local", f"{options.local!r} is {forms}")
    if not file.is_file():
        raise SettingsInvalid("--local", f"there is no file {file}; name the handler's module")
    python = {"callable": f"{file.stem}:{attribute or _default_callable(file)}", "path": str(file.parent)}
    return {"python": python, "http": None}, file.stem


def _default_callable(file: Path) -> str:
    """Return `handle_batch` if the file defines only `handle_batch`, otherwise `handle`. If the file cannot be parsed,
    the later import of `handle` reports the error."""
    try:
        body = ast.parse(file.read_bytes()).body
    except (SyntaxError, ValueError):
        return "handle"
    defined = {node.name for node in body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
    return "handle_batch" if "handle_batch" in defined and "handle" not in defined else "handle"


def _user() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):
        return "somebody"  # in a container, the user id may have no name


def _plain(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]+", "-", text)[:80] or "x"


def _refuse(result: CheckResult) -> int:
    print(f"fleet-consumer: {result.reason}: {result.message}", file=sys.stderr)
    return result.exit_code


class ProgressPrinter:
    """Writes the progress line of a run to `stream` periodically. With `retries`, the line shows the sums of both
    processes.

    If the reader of one of `outputs` closes its stream, the printer stops the run cleanly.
    """

    def __init__(self, now: Callable[[], float], stream: TextIO, outputs: Sequence[Output] = ()) -> None:
        self.retries: RetryProcess | None = None
        self._stream = stream
        self._outputs = outputs
        self._ended = False
        self._terminal = stream.isatty()
        self._every_s = TERMINAL_EVERY_S if self._terminal else PLAIN_EVERY_S
        self._due_at = now() + TERMINAL_EVERY_S
        self._before: tuple[float, int] | None = None
        self._stats = Stats()
        self._state: WorkerState | None = None

    def watch(self, state: WorkerState) -> None:
        self._stats, self._state = state.stats, state

    def tick(self, now: float) -> None:
        """Write the progress line if it is due. Called several times a second."""
        if not self._ended and any(output.unread() for output in self._outputs):
            self._ended = True
            end_main_thread()
        if self.retries is not None:
            self.retries.check_running()
        if now >= self._due_at:
            self._due_at = now + self._every_s
            line = self.line() + self._rate(now)
            if self._terminal:
                # Return the cursor to the start of the line, so the next log line or `print` overwrites the progress.
                columns = shutil.get_terminal_size((100, 24)).columns
                line = f"\r{ERASE_LINE}{line[: columns - 1]}\r"
            self._stream.write(line if self._terminal else f"{line}\n")
            self._stream.flush()

    def end(self) -> None:
        """Print the final counts. On a terminal, first erase the progress line."""
        if self._terminal:
            self._stream.write(ERASE_LINE)
            self._stream.flush()
        print(self.line())

    def _rate(self, now: float) -> str:
        """Return the text for the records per second of both processes since the previous line."""
        counts = (self._stats, Counts() if self.retries is None else self.retries.counts)
        ended = sum(each.done + each.failed + each.dropped for each in counts)
        before, self._before = self._before, (now, ended)
        if before is None or now <= before[0]:
            return ""
        return f" rate={(ended - before[1]) / (now - before[0]):.1f}/s"

    def line(self) -> str:
        """Return the text of the progress line without the rate: counts, lag, membership state and error."""
        stats, session = self._stats, self._state.session if self._state is not None else None
        counts, retry_error = self._counts(stats)
        if self._state is None or session is None:
            return counts
        held = (each.hold.message for each in dict(session.loop.partitions).values() if each.hold is not None)
        error = current_error(self._state) or self._state.handler_error() or next(held, retry_error)
        membership = session.consumer.membership()
        owned = sum(len(partitions) for partitions in membership.assignment.values())
        suffix = f" ({error})" if error else ""
        return (
            f"{counts}{_lag(session)} in-flight={session.loop.in_flight} partitions={owned} {membership.state}{suffix}"
        )

    def _counts(self, stats: Stats) -> tuple[str, str]:
        """Return the text with the counts of both processes, and the retry worker's error."""
        later = Counts() if self.retries is None else self.retries.counts
        counts = (
            f"done={stats.done + later.done} failed={stats.failed + later.failed} "
            f"dropped={stats.dropped + later.dropped}"
        )
        if self.retries is not None:
            counts += f" retried={stats.retried + later.retried}"
            if (count := self.retries.waiting.count) is not None:  # None until the brokers have responded
                counts += f" waiting={count}"
        return counts, later.error


def _lag(session: Session) -> str:
    """Return the text for the total lag of all partitions; empty while any end offset is unknown."""
    partitions = dict(session.loop.partitions)
    ends = session.loop.ends.current(partitions) if partitions else {}
    lags = [lag_of(partition, ends.get(each)) for each, partition in partitions.items()]
    return "" if not lags or None in lags else f" lag={sum(filter(None, lags))}"
