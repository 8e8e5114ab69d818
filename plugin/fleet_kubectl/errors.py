"""Errors that are shown to the user. Each message names the object, the problem, and what to do."""


class FleetError(Exception):
    """Base class of errors. The class name is printed before the message, as the reason."""

    @property
    def reason(self) -> str:
        return type(self).__name__


class NoCluster(FleetError):
    """There is no kubeconfig, the context does not exist, or the API server does not respond."""


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
    """The value of an option is invalid."""


class RunFailed(FleetError):
    """A Redrive or an OffsetReset ended without success."""


class NoAnswer(FleetError):
    """Standard input ended before the user answered the command's question."""


class FileNotWritten(FleetError):
    """A file could not be created or written."""
