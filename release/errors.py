"""The error of a release: a reason to test for and a message to act on."""

__all__ = ["ReleaseError"]


class ReleaseError(Exception):
    """A step of a release that failed.

    ``reason`` is one CamelCase word (``VersionsDiffer``, ``NotSigned``, ``LoginFailed``, ...); ``message`` names the
    object, the observation and the remedy.
    """

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(f"{reason}: {message}")
        self.reason = reason
        self.message = message
