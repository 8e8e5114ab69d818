"""`fleet-consumer check`: the pre-flight check of a revision, run in a separate pod before the rollout.

The check begins with faults that only a new revision can fix. Brokers, credentials, topics and permissions follow. The
first failure is the result. The check does not join the group, call the handler, or write to Kafka.
"""

import asyncio
import threading
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Final

from fleet_consumer.assignors import load as load_assignor
from fleet_consumer.clock import Clock, SystemClock
from fleet_consumer.contract.pod import EXIT_OK, EXIT_SETTINGS, EXIT_SURROUNDINGS
from fleet_consumer.contract.section import SettingsInvalid
from fleet_consumer.contract.worker_config import WorkerConfig, load_config
from fleet_consumer.fetch.thread import FetchThread
from fleet_consumer.handlers.loading import HandlerImportFailed, HandlerNotCallable
from fleet_consumer.librdkafka.producer import RecordProducer
from fleet_consumer.librdkafka.settings import PropertyNotAllowed, consumer_config, producer_config
from fleet_consumer.net import (
    AllBrokersUnreachable,
    AuthenticationFailed,
    ConnectionSettings,
    NetError,
    NetworkClient,
    TlsFailed,
)
from fleet_consumer.wire.errors import ErrorCode, KafkaError, describe, is_retriable
from fleet_consumer.worker import logs
from fleet_consumer.worker.config.mounted_file import policy_file
from fleet_consumer.worker.config.settings import CredentialsUnreadable, connection_settings
from fleet_consumer.worker.lifecycle.termination import report_result
from fleet_consumer.worker.process import handler_of

BROKER_PATIENCE_S: Final = 10.0
"""Total timeout of all broker requests in seconds. A new cluster can create `__consumer_offsets` in this time."""

HANDLER_PATIENCE_S: Final = 60.0
"""Seconds within which the container of an HTTP handler must accept connections."""

RETRY_INTERVAL_S: Final = 0.5


@dataclass(frozen=True, slots=True)
class CheckResult:
    """Result of a check. `reason` is a CamelCase word for the operator's conditions; `message` is a sentence."""

    reason: str
    message: str
    exit_code: int

    @classmethod
    def refused(cls, error: Exception) -> "CheckResult":
        """Return the result for an error in the settings or in the handler."""
        return cls(str(getattr(error, "reason", type(error).__name__)), str(error), EXIT_SETTINGS)

    def report(self) -> None:
        """Print the result, and write it as the container's termination message."""
        report_result({"ok": self.exit_code == EXIT_OK, "reason": self.reason, "message": self.message})


class _Surroundings(Exception):
    """A fault outside the revision. If `passing` is true, the fault may be temporary and the request is repeated."""

    def __init__(self, reason: str, message: str, *, passing: bool = False) -> None:
        super().__init__(message)
        self.reason = reason
        self.passing = passing


def check(path: str, clock: Clock | None = None) -> CheckResult:
    """Run all checks with the settings file `path`, and return the first failure or success.

    Takes at most about 30 s, and up to 60 s more for an HTTP handler.
    """
    try:
        config = load_config(path)
    except SettingsInvalid as error:
        return CheckResult.refused(error)
    with logs.logging_as(config.log):
        return examine(config, clock or SystemClock())


def examine(config: WorkerConfig, clock: Clock) -> CheckResult:
    try:
        for step in STEPS:
            step(config)
        _read_policies(config, clock)
        _await_handler(config, clock)
        with closing(NetworkClient(connection_settings(config.brokers, f"{config.name}-check"), clock)) as client:
            deadline = clock.monotonic() + BROKER_PATIENCE_S
            _ask_until(lambda left: _ask_for_topics(config, client, left), client, clock, deadline)
            _ask_until(lambda left: _ask_for_group(config, client, left), client, clock, deadline)
    except (SettingsInvalid, HandlerImportFailed, HandlerNotCallable) as error:
        return CheckResult.refused(error)
    except (_Surroundings, CredentialsUnreadable) as error:
        return CheckResult(error.reason, str(error), EXIT_SURROUNDINGS)
    except NetError as error:
        return CheckResult(_network_reason(error), str(error), EXIT_SURROUNDINGS)
    pattern = config.topic_pattern
    topics = ", ".join(config.topics) if pattern is None else f"that match {pattern.text}"
    return CheckResult("CheckPassed", f"handler {config.handler.title} on topics {topics}", EXIT_OK)


def _read_policies(config: WorkerConfig, clock: Clock) -> None:
    """Raise _Surroundings if the retry policies are unusable. Policies are not part of the revision, so a later check
    of the same revision may pass."""
    if config.policy_file is None:
        return
    file = policy_file(config.policy_file, clock)
    file.reload()
    if file.last_error is not None:
        raise _Surroundings(file.last_error.reason, str(file.last_error))


def _await_handler(config: WorkerConfig, clock: Clock) -> None:
    """Wait until the HTTP handler accepts connections. Its container starts before this container, but may be slow."""
    if config.handler.http is None:
        return
    from fleet_consumer.handlers.http import HandlerUnreachable, listens

    port, deadline, pause = config.handler.http.port, clock.monotonic() + HANDLER_PATIENCE_S, threading.Event()
    while not asyncio.run(listens(port)):
        if clock.monotonic() >= deadline:
            message = (
                f"nothing listens on port {port} of the pod after {HANDLER_PATIENCE_S:g} s; "
                "check the container `handler`"
            )
            raise _Surroundings(HandlerUnreachable.reason, message)
        pause.wait(RETRY_INTERVAL_S)


def _assignors_exist(config: WorkerConfig) -> None:
    for name in config.consumer.assignors:
        try:
            load_assignor(name)
        except Exception as error:  # the module of a custom assignor may raise any exception
            raise SettingsInvalid("consumer.assignors", f"{name!r} cannot be used: {error}") from error


def _librdkafka_takes_settings(config: WorkerConfig) -> None:
    connection = ConnectionSettings(bootstrap_servers=config.brokers.bootstrap_servers, client_id=config.name)
    path = "consumer.properties"
    try:
        settings = consumer_config(connection, config.group_id, "read_uncommitted", config.consumer.properties)
        FetchThread(settings, name="check", on_released=lambda: None, clock=SystemClock()).close(1.0)
        path = "producer.properties"
        RecordProducer(producer_config(connection, config.producer_properties))
    except PropertyNotAllowed as error:
        raise SettingsInvalid(path, str(error)) from error
    except Exception as error:  # raised when librdkafka rejects a property's value
        raise SettingsInvalid(path, f"librdkafka refuses these properties: {error}") from error


STEPS: Final[Sequence[Callable[[WorkerConfig], object]]] = (
    lambda config: handler_of(config, SystemClock()),  # first: the most frequent faults, found quickly
    _assignors_exist,
    _librdkafka_takes_settings,
)
"""Checks, in order, for faults that only a new revision can fix."""


def _ask_until(ask: Callable[[float], None], client: NetworkClient, clock: Clock, deadline: float) -> None:
    """Repeat a request while its error may be temporary. Raises the last error at the deadline."""
    while True:
        try:
            return ask(max(1.0, deadline - clock.monotonic()))
        except _Surroundings as error:
            if not error.passing or clock.monotonic() >= deadline:
                raise
        client.poll(RETRY_INTERVAL_S)


def _ask_for_topics(config: WorkerConfig, client: NetworkClient, patience_s: float) -> None:
    outputs = [topic for topic in config.handler.outputs if topic not in config.topics]
    if not config.topics and not outputs:
        # A fleet with a pattern reads only existing topics. A metadata request without names would return all topics.
        return
    answer = client.metadata([*config.topics, *outputs], timeout_s=patience_s)
    for topic in answer.topics:
        code = topic.error_code
        if code == ErrorCode.NONE:
            continue
        field = "handler.outputs" if topic.name in outputs else "topics"
        if code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            message = f"topic {topic.name!r} ({field}) does not exist; create it, or correct the name"
            raise _Surroundings("TopicNotFound", message)
        if code == ErrorCode.TOPIC_AUTHORIZATION_FAILED:
            message = (
                f"no permission to describe topic {topic.name!r} ({field}); grant Describe to {_principal(config)}"
            )
            raise _Surroundings("AuthorizationFailed", message)
        if code == ErrorCode.INVALID_TOPIC_EXCEPTION:
            raise SettingsInvalid(field, f"{topic.name!r} is not a valid topic name")
        message = f"topic {topic.name!r} ({field}): the brokers answer {describe(code)}"
        raise _Surroundings("BrokerUnreachable", message, passing=is_retriable(code))


def _ask_for_group(config: WorkerConfig, client: NetworkClient, patience_s: float) -> None:
    answer = client.find_coordinators([config.group_id], timeout_s=patience_s)[config.group_id]
    if not isinstance(answer, KafkaError):
        return
    if answer.code == ErrorCode.GROUP_AUTHORIZATION_FAILED:
        message = f"no permission to use group {config.group_id!r}; grant Read to {_principal(config)}"
        raise _Surroundings("AuthorizationFailed", message)
    message = f"group {config.group_id!r} has no coordinator: the brokers answer {describe(answer.code)}"
    raise _Surroundings("BrokerUnreachable", message, passing=is_retriable(answer.code))


def _principal(config: WorkerConfig) -> str:
    if config.brokers.sasl is not None:
        return "the cluster's user"
    if config.brokers.tls is not None and config.brokers.tls.cert_file is not None:
        return "the subject of the client certificate"
    return "anonymous clients (the cluster has no sasl settings and no client certificate)"


def _network_reason(error: NetError) -> str:
    """Return AuthenticationFailed or TlsFailed if any broker reported it, otherwise BrokerUnreachable."""
    causes = [error, *(error.failures if isinstance(error, AllBrokersUnreachable) else ())]
    if any(isinstance(cause, AuthenticationFailed) for cause in causes):
        return "AuthenticationFailed"
    return "TlsFailed" if any(isinstance(cause, TlsFailed) for cause in causes) else "BrokerUnreachable"
