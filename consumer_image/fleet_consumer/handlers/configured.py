"""Construction of a handler, its performer and its executor from the settings."""

from fleet_consumer.clock import Clock
from fleet_consumer.contract.worker_config import HandlerConfig
from fleet_consumer.handlers.executor import Executor, LoopExecutor, ThreadExecutor
from fleet_consumer.handlers.loading import Handler, load_handler
from fleet_consumer.handlers.performing import Outputs, Performer, checker, decoder


def configured_handler(config: HandlerConfig, clock: Clock) -> Handler:
    """Return the configured handler; its `setup` has not run yet. Raises HandlerImportFailed, HandlerNotCallable. Call
    this function before any other application code is imported, because it adds the source folder to the import
    path."""
    if config.python is not None:
        return load_handler(config.python.callable, config.python.path)
    assert config.http is not None
    # Imported here because aiohttp is slow to import, and workers with Python handlers do not need it.
    from fleet_consumer.handlers.http import HttpHandler

    return HttpHandler(
        config.http.port,
        config.http.path,
        batch=config.http.batch,
        timeout_s=config.timeout_seconds,
        value_format=config.decode.value,
        clock=clock,
    ).handler()


def make_performer(config: HandlerConfig, handler: Handler, outputs: Outputs) -> Performer:
    decode = checker if handler.takes_bytes else decoder
    return Performer(
        handler.call,
        batch=handler.batch,
        decode_key=decode("key", config.decode.key),
        decode_value=decode("value", config.decode.value),
        outputs=outputs,
        timeout_s=None if handler.times_itself else config.timeout_seconds,
    )


def make_executor(
    config: HandlerConfig, handler: Handler, clock: Clock, outputs: Outputs | None = None
) -> Executor | None:
    """Return the handler's executor. Returns None for a synchronous handler with one call at a time, because the
    consume loop itself calls such a handler fastest."""
    if config.concurrency == 1 and not handler.batch and not handler.asynchronous:
        return None
    performer = make_performer(config, handler, outputs or Outputs())
    kind = LoopExecutor if handler.asynchronous else ThreadExecutor
    return kind(performer, config.concurrency, clock)
