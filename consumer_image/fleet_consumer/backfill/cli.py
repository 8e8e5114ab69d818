"""Driver of a Backfill: runs one attempt, in a pod through `spark-submit` or with a local Spark master.

Settings are checked before the Spark session starts, so a mistake ends the attempt in seconds. Handlers are imported
only on executors, because the driver's pod has a token for the Kubernetes API. The exit codes are those of
`contract/pod.py`. The last line of standard output and the termination message give the reason.
"""

import argparse
import logging
import os
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from fleet_consumer.backfill.api_server import ApiFailed, ApiServer, LedgerStore, read_control
from fleet_consumer.backfill.brokers_view import BrokersView
from fleet_consumer.backfill.engine import SparkEngine
from fleet_consumer.backfill.errors import BackfillFailed, Superseded
from fleet_consumer.backfill.run import Engine, Parts, Run
from fleet_consumer.backfill.work import Work, policies_text
from fleet_consumer.clock import SystemClock
from fleet_consumer.contract.backfill_config import BOTH, BackfillConfig, load_config
from fleet_consumer.contract.backfill_ledger import RunProblem, SuspectedRecord
from fleet_consumer.contract.pod import BACKFILL_CONFIG, EXIT_OK, EXIT_SETTINGS, EXIT_SUPERSEDED, EXIT_SURROUNDINGS
from fleet_consumer.contract.policies import PolicyInvalid
from fleet_consumer.contract.section import SettingsInvalid
from fleet_consumer.worker import logs
from fleet_consumer.worker.lifecycle.termination import report_result

LOG = logging.getLogger("fleet_consumer.backfill")

PROBLEM_CHARACTERS_MAX: Final = 2_000
"""Maximum length of an error message in characters; Kubernetes limits a termination message to 4 KiB."""
UNFORESEEN: Final = "DriverFailed"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="fleet-backfill", description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument(
        "--config", default=BACKFILL_CONFIG, metavar="FILE", help="path of the settings file (default: %(default)s)"
    )
    parser.add_argument(
        "--attempt",
        type=int,
        required=True,
        help="number of this attempt; attempts with lower numbers can no longer write",
    )
    parser.add_argument("--master", help="Spark's master URL; needed only if spark-submit does not set it")
    options = parser.parse_args(arguments)
    try:
        config = load_config(options.config)
    except SettingsInvalid as error:
        return _report(problem_of(error), EXIT_SETTINGS)
    with logs.logging_as(config.worker.log):
        logging.getLogger("py4j").setLevel(logging.WARNING)
        return _Attempt(config, options).run()


class _Attempt:
    def __init__(self, config: BackfillConfig, options: argparse.Namespace) -> None:
        self._config = config
        self._options = options
        self._text = Path(options.config).read_text(encoding="utf-8")
        self._brokers = BrokersView(config)
        self._run: Run | None = None
        self._limits: Mapping[str, int] | None = None

    def run(self) -> int:
        try:
            covered = self._play()
        except Superseded as error:
            LOG.error("a newer attempt owns the ledger")  # noqa: TRY400
            return _report(problem_of(error), EXIT_SUPERSEDED)
        except Exception as error:
            problem = problem_of(error)
            unforeseen = problem.reason == UNFORESEEN
            said = logs.fields(reason=problem.reason, error=problem.message)
            LOG.error("the attempt failed", exc_info=unforeseen, extra=said)  # noqa: TRY400
            return self._ended(problem)
        reason, message = (
            ("Covered", "all ranges are covered")
            if covered
            else ("Suspended", "stopped as the operator's control requests")
        )
        report_result({"ok": True, "reason": reason, "message": message})
        return EXIT_OK

    def _play(self) -> bool:
        check(self._config)
        clock = SystemClock()
        objects = ApiServer(self._config.namespace, os.environ, clock)
        ledgers = LedgerStore(objects, self._config.ledger, self._options.attempt)
        parts = Parts(
            ledgers=ledgers,
            read_control=lambda: read_control(objects, self._config.control),
            check_ranges=self._brokers.check,
            prepare=self._prepare,
            clock=clock,
            wait=threading.Event().wait,
        )
        self._run = Run(self._config, self._options.attempt, parts)
        with ExitStack() as ends:

            def start() -> Engine:
                engine = SparkEngine(self._config, self._options.master, ledgers.alive)
                ends.callback(engine.close)
                return engine

            return self._run.go(start)

    def _prepare(self, seconds: float, rate: float | None, suspected: tuple[SuspectedRecord, ...]) -> Work:
        """Return the request for a slice's tasks, with the current policies."""
        worker = self._config.worker
        if self._limits is None:
            failed = worker.failed_topic if self._config.on_error == "FailedTopic" else None
            self._limits = self._brokers.limits(filter(None, (self._config.sink.topic, failed)))
        try:
            policies = policies_text(worker.policy_file)
        except (OSError, ValueError, PolicyInvalid) as error:
            raise BackfillFailed("PolicyFileUnreadable", f"{worker.policy_file}: {error}", final=False) from error
        return Work(
            config=self._text, policies=policies, seconds=seconds, rate=rate, limits=self._limits, suspected=suspected
        )

    def _ended(self, problem: RunProblem) -> int:
        try:
            if self._run is not None:
                self._run.fail(problem)
        except Superseded as error:
            return _report(problem_of(error), EXIT_SUPERSEDED)
        except Exception as error:
            LOG.warning("the problem could not be written to the ledger", extra=logs.fields(error=str(error)))
        return _report(problem, EXIT_SETTINGS if problem.final else EXIT_SURROUNDINGS)


def check(config: BackfillConfig) -> None:
    """Raise SettingsInvalid for settings that this driver cannot run."""
    live = {config.topic, *config.worker.topics, *config.worker.handler.outputs}
    if config.sink.topic in live:
        problem = f"is {config.sink.topic!r}, a topic of the live group; give a topic that the live group does not use"
        raise SettingsInvalid("sink.topic", problem)
    if config.compare is None:
        return
    for name in ("topic", "table"):
        if getattr(config.sink, name) is not None:
            raise SettingsInvalid(
                f"sink.{name}", "cannot store the differences of a comparison; give `sink.parquet`, or no sink"
            )
    if config.compare.handlers != BOTH and config.sink.parquet is None:
        raise SettingsInvalid(
            "sink.parquet", "is missing; give it, because handlers of two images are compared through files"
        )


def problem_of(error: Exception) -> RunProblem:
    message = str(error)[:PROBLEM_CHARACTERS_MAX]
    if isinstance(error, SettingsInvalid | BackfillFailed | ApiFailed | Superseded):
        final = error.final if isinstance(error, BackfillFailed) else isinstance(error, SettingsInvalid)
        return RunProblem(reason=error.reason, message=message, final=final)
    return RunProblem(reason=UNFORESEEN, message=f"{type(error).__name__}: {message}", final=False)


def _report(problem: RunProblem, code: int) -> int:
    report_result({"ok": False, "reason": problem.reason, "message": problem.message})
    return code


if __name__ == "__main__":
    sys.exit(main())
