"""Errors that a user sees. Each message names the object, what was seen, and what to do."""


class FleetError(Exception):
    """A failure of a command. The name of its class is the reason word that is printed before the message."""

    @property
    def reason(self) -> str:
        return type(self).__name__


class NoCluster(FleetError):
    """No kubeconfig, no such context, or no response of the API server."""


class NotLoggedIn(FleetError):
    """The API server does not accept the credentials of the kubeconfig."""


class Forbidden(FleetError):
    """The user lacks a permission."""


class ObjectNotFound(FleetError):
    """The named object does not exist."""


class KindsNotInstalled(FleetError):
    """The cluster does not have the CRDs of Consumer Fleet."""


class RefusedByApiServer(FleetError):
    """The API server refuses an object or a request."""


class NoWorkerRuns(FleetError):
    """No pod of the fleet can run a command."""


class CommandFailed(FleetError):
    """A command in a pod could not be run."""


class OptionInvalid(FleetError):
    """An option has a value that the command cannot use."""


class RunFailed(FleetError):
    """A Redrive or an OffsetReset ended without success."""


class NoAnswer(FleetError):
    """Nobody answered the question of a command."""


class FileNotWritten(FleetError):
    """A file could not be created or written."""
