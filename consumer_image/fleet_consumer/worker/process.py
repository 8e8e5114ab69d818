"""The worker process, from its settings to its exit code.

The main thread runs the handler's `setup`, then one session after the other, then `teardown`. The HTTP threads, the
watchdog and the two threads of each session's consumer run in parallel. External errors, such as unreachable brokers, a
wrong password, a missing topic or a fenced member, do not end the process. The worker is then not ready, and reports
the reason in /member and in the log.
"""

import logging
import os
import threading
from collections.abc import Callable, Mapping
from typing import Any, Final, Protocol

from fleet_consumer.clock import Clock, SystemClock
from fleet_consumer.contract.pod import EXIT_OK, HEALTH_PAGE, MEMBER_PAGE, READY_PAGE
from fleet_consumer.contract.section import SettingsInvalid
from fleet_consumer.contract.worker_config import WorkerConfig
from fleet_consumer.group.timing import Backoff
from fleet_consumer.handlers.call import HandlerCall, end_forked_child
from fleet_consumer.handlers.collector import tame_collector
from fleet_consumer.handlers.configured import configured_handler, make_executor
from fleet_consumer.handlers.executor import Work
from fleet_consumer.handlers.loading import Handler, HandlerContext
from fleet_consumer.record import Record
from fleet_consumer.worker import logs
from fleet_consumer.worker.breaker.pacing import BreakerSnapshot
from fleet_consumer.worker.config.mounted_file import join_hold_s, policy_file, skip_file
from fleet_consumer.worker.config.role import Role, consumer_group
from fleet_consumer.worker.config.settings import context_of, identify, with_environment
from fleet_consumer.worker.http_server import HttpServer, Page, json_page, text_page
from fleet_consumer.worker.lifecycle.termination import (
    NOT_CLOSED,
    NOT_DRAINED,
    OVER_THE_LIMIT,
    SETUP_OVER_THE_LIMIT,
    LastWord,
    Signals,
    end_process,
)
from fleet_consumer.worker.lifecycle.watchdog import (
    Hang,
    HangDetector,
    PeriodicThread,
    SetupWatch,
    Watch,
    Watchdog,
    stack_of,
)
from fleet_consumer.worker.logs import about, fields
from fleet_consumer.worker.member import WorkerState, member_document, ready, retry_document, stopped_part
from fleet_consumer.worker.metrics import CONTENT_TYPE, GroupLabels, metrics_page
from fleet_consumer.worker.session import CLOSE_TIMEOUT_S, WorkerContext
from fleet_consumer.worker.supervisor import Supervisor

LOG = logging.getLogger("fleet_consumer.worker")

SETUP_BACKOFF_FIRST_S: Final = 1.0
SETUP_BACKOFF_MAX_S: Final = 60.0
"""Longest wait in seconds after a failed `setup`. The first wait is `SETUP_BACKOFF_FIRST_S`."""

LEAVE_GRACE_S: Final = 2.0
"""Seconds after the poll interval in which the coordinator thread of a hanging worker can leave the group."""

CANCEL_GRACE_S: Final = 1.0
"""Seconds in which a cancelled call must end. After this time, the call counts as hanging."""


class SetupFailed(Exception):
    """The handler's `setup` raised an error. `setup` is called again until it succeeds."""

    reason = "HandlerSetupFailed"


class ProgressDisplay(Protocol):
    """Displays the state of a local run periodically."""

    def watch(self, state: WorkerState) -> None:
        """Store the state to display. Called before any thread is started."""

    def tick(self, now: float) -> None:
        """Update the display if it is due. Called several times a second on a separate thread, as writes may block."""


def run_worker(
    config: WorkerConfig,
    environment: Mapping[str, str],
    *,
    role: Role = Role.MAIN,
    local: ProgressDisplay | None = None,
) -> int:
    """Run a worker until SIGTERM or SIGINT, and return the exit code. Must be called on the main thread.

    Raises SettingsInvalid and the handler's loading errors before any thread is started. An HTTP port in use and a
    retry worker without policies also raise SettingsInvalid. If a handler hangs for too long, the process ends with
    EXIT_HUNG. `local` is set for a run outside a pod, whose pages are served on the loopback address only.
    """
    config, watch = with_environment(config, environment), Watch()
    held = logs.in_hand(lambda: watch.record, threading.get_ident())
    with logs.logging_as(config.log, held, process="" if role is Role.MAIN else role.value):
        if local is not None and config.log.level != "Debug":
            # In a local run, log lines about the group protocol would only distract.
            logging.getLogger("fleet_consumer.coordinator").setLevel(logging.WARNING)
        identity, clock = identify(config, environment), SystemClock()
        handler = handler_of(config, clock)
        if role is Role.RETRY and config.policy_file is None:
            raise SettingsInvalid("retry", "is null; a retry worker needs the policies of its group")
        last_word = LastWord(clock)
        last_word.open()
        handler = last_word.recording(handler)
        worker = WorkerContext(
            config=config,
            identity=identity,
            role=role,
            handler=handler,
            executor=make_executor(config.handler, handler, clock),
            policy_file=None if config.policy_file is None else policy_file(config.policy_file, clock),
            skip_file=None if config.skip_file is None else skip_file(config.skip_file, config.uid, clock),
            watch=watch,
            clock=clock,
        )
        return WorkerProcess(worker, last_word, local).run()


def handler_of(config: WorkerConfig, clock: Clock) -> Handler:
    """Load the configured handler. Then restore the worker's logging, which the handler's import may have changed."""
    try:
        return configured_handler(config.handler, clock)
    finally:
        logs.OWN_LOG.keep()


class WorkerProcess:
    """Connects the components of a worker. The constructor starts no threads. `run` may be called once."""

    def __init__(self, worker: WorkerContext, last_word: LastWord, local: ProgressDisplay | None) -> None:
        config, handler = worker.config, worker.handler
        self._worker = worker
        self._config = config
        self._handler = handler
        self._executor = worker.executor
        self._watch = worker.watch
        self._clock = worker.clock
        self._stats = worker.stats
        self._stop = worker.stop
        self._last_word = last_word
        self._state = WorkerState(
            config.revision, config.consumer.max_poll_interval_seconds, worker.identity.instance_id, worker.stats
        )
        self._state.handler_error = handler.last_error
        self._state.breaker = self._breaker
        self._state.retry = self._retry
        self._state.work = self._work_done
        self._local = local
        if local is not None:
            local.watch(self._state)
        self._pid = os.getpid()
        self._signals = Signals()
        self._supervisor = Supervisor(worker, self._state, self._signals)
        self._setup = SetupWatch(
            handler.spec,
            timeout_s=config.handler.timeout_seconds,
            limit_s=config.consumer.max_poll_interval_seconds,
            clock=self._clock,
        )
        self._hook = ""  # `setup` or `teardown` while it runs
        self._stop_deadline = float("inf")
        self._gave_up: dict[str, object] | None = None
        self._watchdog = Watchdog(
            self._watch,
            HangDetector(
                # An asynchronous call is cancelled at its timeout, and hangs only if it does not end soon after.
                timeout_s=config.handler.timeout_seconds + (CANCEL_GRACE_S if handler.asynchronous else 0.0),
                limit_s=config.consumer.max_poll_interval_seconds + LEAVE_GRACE_S,
            ),
            calls=self._calls,
            clock=self._clock,
            duties=[self._pass_on_signals, self._check_setup, self._check_stop, self._record_calls],
            on_hang=self._hung,
        )
        self._progress = PeriodicThread("progress", [] if local is None else [local.tick], self._clock)
        try:
            host, uid = "" if local is None else "127.0.0.1", worker.identity.uid
            tokens = {} if uid is None else {MEMBER_PAGE: uid}
            self._http = HttpServer(config.http_port, self._pages(), host, tokens)
        except OSError as error:
            raise SettingsInvalid("httpPort", f"cannot listen on {config.http_port}: {error}") from error

    def run(self) -> int:
        self._signals.keep()
        if hasattr(os, "register_at_fork"):  # Windows has no forks
            os.register_at_fork(after_in_child=self._forked)
        self._http.start()
        self._watchdog.watched = threading.get_ident()
        self._watchdog.start()
        if self._local is not None:
            self._progress.start()
        tame_collector()
        LOG.info(
            "worker started",
            extra=fields(
                group=self._config.group_id,
                revision=self._config.revision,
                role=self._worker.role.value,
                instance=self._worker.identity.instance_id,
                port=self._http.port,
            ),
        )
        try:
            if self._executor is not None:
                self._executor.start()
            self._work()
            if self._gave_up is not None:
                end_process(OVER_THE_LIMIT, self._gave_up)
        finally:
            self._progress.close()
            self._http.close()
            if self._executor is not None:
                self._executor.close()
            self._watchdog.close()
        self._last_word.close()
        LOG.info("worker ended", extra=fields(done=self._stats.done, failed=self._stats.failed))
        return EXIT_OK

    def _work(self) -> None:
        context = context_of(self._config, self._worker.identity.worker, "live")
        if not self._set_up(context):
            return
        try:
            self._hold_join()
            self._supervisor.run()
        finally:
            try:
                self._call("teardown", self._handler.teardown, context)
                end_forked_child(self._pid)
            except (Exception, SystemExit) as error:
                end_forked_child(self._pid, error)
                LOG.exception("the handler's teardown failed")

    def _set_up(self, context: HandlerContext) -> bool:
        """Call `setup` until it succeeds. Returns False if the worker is stopped earlier."""
        backoff = Backoff(SETUP_BACKOFF_FIRST_S, SETUP_BACKOFF_MAX_S, lambda: 1.0)
        while not self._stop.is_set():
            try:
                try:
                    with self._setup.running():
                        self._call("setup", self._handler.setup, context)
                finally:
                    logs.OWN_LOG.keep()
                end_forked_child(self._pid)
            except (Exception, SystemExit) as error:
                end_forked_child(self._pid, error)
                delay = backoff.next()
                self._state.error = SetupFailed(f"setup of handler {self._handler.spec!r}: {error!r}")
                LOG.exception("the handler's setup failed", extra=fields(again_in_s=delay))
                self._stop.wait(delay)
            else:
                self._state.error = None
                self._signals.keep()
                return True
        return False

    def _hold_join(self) -> None:
        """Delay the first join, so that all workers created by the same scaling step join in one rebalance."""
        if self._worker.role is not Role.MAIN:
            return
        pod = self._worker.identity.worker
        hold_s = join_hold_s(self._config.skip_file, self._config.uid, pod, self._clock.wall())
        if hold_s > 0.0:
            LOG.info(
                "the first join waits for the other workers of this scaling step",
                extra=fields(seconds=round(hold_s, 1)),
            )
            self._stop.wait(hold_s)

    def _call(self, name: str, hook: Callable[[HandlerContext], object], context: HandlerContext) -> None:
        self._hook = name
        try:
            if self._executor is not None:
                self._executor.call(hook, context)
            else:
                hook(context)
        finally:
            self._hook = ""

    def _calls(self) -> list[HandlerCall]:
        return [] if self._executor is None else self._executor.calls()

    def _forked(self) -> None:
        """Called in a child process that the handler forked. Ensures that the child does not act as a second worker."""
        self._signals.release_in_child()
        self._watch.due = True  # the loop then checks the process id after the current record, and ends the child

    def _pass_on_signals(self, now: float) -> None:
        """Begin to drain after a signal. This is the watchdog's first duty, because later duties may fail or block."""
        if self._signals.asked and not self._stop.is_set():
            self._stop_deadline = now + self._config.drain_seconds + CLOSE_TIMEOUT_S
            self._supervisor.end()
            LOG.info("draining", extra=fields(seconds=self._config.drain_seconds))
        self._signals.report()

    def _held(self) -> list[Record | None]:
        return [self._watch.record, *(call.records[0] for call in self._calls())]

    def _check_stop(self, now: float) -> None:
        """End the process if it does not stop in time after a signal.

        If a handler, `setup` or `teardown` still runs, the limit is the sum of the drain and close timeouts. Otherwise
        the close timeout is added a second time, because unreachable brokers may have used up the first.
        """
        if now < self._stop_deadline:
            return
        busy = next((record for record in self._held() if record is not None), None)
        if busy is not None:
            end_process(NOT_DRAINED, about(busy))
        if self._hook:
            end_process(NOT_DRAINED, {"call": self._hook})
        if now >= self._stop_deadline + CLOSE_TIMEOUT_S:
            end_process(NOT_CLOSED, {"stack": stack_of(threading.main_thread().ident)})

    def _record_calls(self, now: float) -> None:
        """Store the hanging calls and the records being handled, for /member and the termination message."""
        wall = self._clock.wall()
        self._state.hangs = tuple((hang, wall - hang.seconds) for hang in self._watchdog.hangs)
        self._state.in_hand = tuple((each.record, wall - each.seconds) for each in self._watchdog.in_hand)
        self._last_word.record_held(self._held())

    def _check_setup(self, now: float) -> None:
        """Report a `setup` that does not return. After the limit, end the process, as the call cannot be cancelled."""
        before, (error, over) = self._state.hung_setup, self._setup.overdue(now)
        self._state.hung_setup = error
        if error is not None and before is None:
            stack = stack_of(threading.main_thread().ident)
            LOG.error("the handler's setup does not return", extra=fields(error=str(error), stack=stack))
        if error is not None and over:
            end_process(SETUP_OVER_THE_LIMIT, {"error": str(error)}, error.reason)

    def _hung(self, hang: Hang, stack: str) -> None:
        """Report a handler call that exceeded its timeout. End the worker if the call also exceeded the poll interval.
        Called on the watchdog's thread."""
        details = {**about(hang.record), "seconds": round(hang.seconds, 1), "stack": stack}
        if not hang.over:
            LOG.error("the handler did not return within its timeout", extra=fields(**details))
        elif hang.thread == threading.main_thread().ident:
            end_process(OVER_THE_LIMIT, details)
        else:
            self._give_up(details)

    def _give_up(self, details: dict[str, object]) -> None:
        """End the worker because a call in the executor hangs. The loop first commits finished records and leaves the
        group.

        If the consume loop hangs as well, the process is ended after twice `CLOSE_TIMEOUT_S`.
        """
        if self._gave_up is not None:
            return
        self._gave_up = details
        self._stop_deadline = self._clock.monotonic() + 2 * CLOSE_TIMEOUT_S
        self._supervisor.end(0.0, gives_up=True)

    def _breaker(self) -> BreakerSnapshot | None:
        session = self._state.session
        return None if session is None else session.parts.pacing.snapshot

    def _retry(self) -> dict[str, Any] | None:
        file, session = self._worker.policy_file, self._state.session
        if file is None:
            return None
        heads = {} if session is None else session.parts.intake.heads
        return retry_document(self._worker.role.value, file.content, heads, self._stats)

    def _work_done(self) -> Work:
        if self._executor is not None:
            return self._executor.work
        return Work(self._stats.busy.until(self._clock.monotonic()), slots=1)

    def _pages(self) -> dict[str, Callable[[], Page]]:
        config, role = self._config, self._worker.role
        labels = GroupLabels(config.namespace, config.name, consumer_group(role, config.group_id), role.value)
        render = metrics_page(self._state, labels, self._clock)

        def health() -> Page:
            handling, now = self._watch.record is not None, self._clock.monotonic()
            stopped = stopped_part(self._state, self._watchdog.beat_at, handling=handling, now=now)
            return text_page(stopped is None, "alive" if stopped is None else f"{stopped}; see the log")

        return {
            HEALTH_PAGE: health,
            READY_PAGE: lambda: text_page(*ready(self._state)),
            "/metrics": lambda: Page(200, CONTENT_TYPE, render()),
            MEMBER_PAGE: lambda: json_page(member_document(self._state)),
        }
