"""The error class of release commands."""

__all__ = ["ReleaseError"]


class ReleaseError(Exception):
    """A step of a release has failed.

    ``reason`` is a CamelCase word (``VersionsDiffer``, ``NotSigned``, ``LoginFailed``, ...). ``message`` contains the
    object, the problem and the remedy.
    """

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(f"{reason}: {message}")
        self.reason = reason
        self.message = message
