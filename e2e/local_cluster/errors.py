"""The error of the embedded cluster: a reason to test for and a message to act on."""

__all__ = ["ClusterError"]


class ClusterError(Exception):
    """A step that failed.

    ``reason`` is one CamelCase word from a small set (``MissingPrograms``, ``BuildFailed``, ``ComponentExited``,
    ``TimedOut``, ...); ``message`` names the object, the observation and the remedy.
    """

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(f"{reason}: {message}")
        self.reason = reason
        self.message = message
