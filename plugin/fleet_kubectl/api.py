"""Requests to the API server, with the kubeconfig and the context that kubectl would use.

This is the only module that imports the Kubernetes client. It returns plain dicts and raises only FleetError.
"""

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final

import kubernetes.client as kube
import kubernetes.config
import websocket
import yaml
from kubernetes.client.exceptions import ApiException
from kubernetes.stream import stream
from urllib3.exceptions import HTTPError

from fleet_consumer.clock import SystemClock
from fleet_kubectl import errors
from fleet_kubectl.tables import cut, printable
from fleet_operator.clients.kinds import POD, JsonObject, Kind

PAGE: Final = 500
"""Number of objects per page of a list, as in kubectl."""
LISTS: Final = 3
"""Number of attempts to read a list whose pages expire. The last attempt is one request without paging, which cannot
expire."""
TIMEOUT_S: Final = 30.0
CONNECT_S: Final = 10.0
WATCH_S: Final = 50
"""Seconds after which the API server ends a watch. A connection without data for SILENCE_S is therefore dead."""
SILENCE_S: Final = 60.0
EXEC_S: Final = 1800.0
"""Longest time for which a command may run in a pod."""
NAMESPACE_FILE: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
OUR_GROUP: Final = "consumerfleet.io"
JSON: Final = "application/json"
CONFIG: Final[Any] = kubernetes.config
"""The module `kubernetes.config`, typed as Any because its functions have no type hints."""
ERROR_CHANNEL: Final = 3
SAID_MAX: Final = 1000
"""Maximum number of characters of an API server's message that are shown."""

Query = Mapping[str, str]


class ListExpired(errors.RefusedByApiServer):
    """The continue token of a list has expired, so the list must be read again."""


class WatchExpired(Exception):
    """The resource version of a watch is too old, so a new list is needed."""


@dataclass(frozen=True, slots=True)
class Page:
    """All objects of a list, and the resource version from which a watch continues."""

    items: list[JsonObject]
    version: str


class Api:
    """Access to one cluster, with a default namespace. Errors for the user are raised as FleetError."""

    def __init__(self, client: Any, namespace: str) -> None:
        self._client = client
        self.namespace = namespace

    def close(self) -> None:
        """End the open connections."""
        self._client.close()

    def get(self, kind: Kind, namespace: str, name: str) -> JsonObject:
        return self._json("GET", kind, namespace, name)

    def list(self, kind: Kind, namespace: str | None, query: Query | None = None) -> Page:
        """Read all objects of a kind, in pages of 500. The namespace None means all namespaces.

        If the continue token expires, the whole list is read again.
        """
        for _ in range(LISTS - 1):
            with suppress(ListExpired):
                return self._pages(kind, namespace, {"limit": str(PAGE), **(query or {})})
        return self._pages(kind, namespace, query or {})

    def _pages(self, kind: Kind, namespace: str | None, query: Query) -> Page:
        items: list[JsonObject] = []
        token = ""
        while True:
            wanted = {**query, **({"continue": token} if token else {})}
            answer = self._json("GET", kind, namespace, query=wanted)
            items += answer["items"]
            token = answer["metadata"].get("continue") or ""
            if not token:
                return Page(items, answer["metadata"].get("resourceVersion") or "")

    def check(self, kind: Kind, namespace: str | None) -> None:
        """Request a list of one object, only to raise the error that the complete list would raise."""
        self._json("GET", kind, namespace, query={"limit": "1"})

    def create(self, kind: Kind, namespace: str, body: JsonObject) -> JsonObject:
        query = {"fieldManager": "kubectl-fleet", "fieldValidation": "Strict"}
        return self._json("POST", kind, namespace, query=query, body=body)

    def watch(
        self, kind: Kind, namespace: str | None, version: str, query: Query | None = None
    ) -> Iterator[JsonObject]:
        """Yield the events of a watch until the API server ends the watch. Raises WatchExpired if the version is too
        old."""
        limits = {"timeoutSeconds": str(WATCH_S), "allowWatchBookmarks": "true"}
        wanted = {"watch": "1", "resourceVersion": version, **limits, **(query or {})}
        answer = self._send("GET", kind.path(namespace), wanted, read_s=SILENCE_S)
        if answer.status == HTTPStatus.GONE:
            raise WatchExpired
        self._check(answer, kind, namespace, None)
        for line in _lines(answer):
            event = _parsed(line, f"{kind.plural}: an event of the watch")
            if event.get("type") == "ERROR":
                said = event.get("object") or {}
                if said.get("code") == HTTPStatus.GONE:
                    raise WatchExpired
                seen = said.get("message") or "no reason given"
                raise errors.RefusedByApiServer(f"{kind.plural}: the API server ended the watch: {seen}; try again")
            yield event

    def log(self, namespace: str, pod: str, query: Query, *, read_s: float | None = TIMEOUT_S) -> Iterator[str]:
        """Yield the lines of a container's log. If the query contains `follow`, the lines end when the container ends;
        `read_s` (read timeout in seconds) must then be None."""
        answer = self._send("GET", POD.path(namespace, pod, "log"), query, read_s=read_s)
        self._check(answer, POD, namespace, pod)
        for line in _lines(answer):
            yield line.decode("utf-8", "replace")

    def execute(
        self, namespace: str, pod: str, container: str, command: Sequence[str], output: Callable[[str, bool], None]
    ) -> int:
        """Run a command in a container and return its exit code.

        `output` is called for each part of the output: with the text, and with True if it is standard error. The output
        comes from a tenant's pod, so it is not safe for a terminal. Raises Forbidden and CommandFailed.
        """
        core, who = kube.CoreV1Api(self._client), f"{namespace}/{pod}"
        wanted = {"stdin": False, "stdout": True, "stderr": True, "tty": False, "_preload_content": False}
        websocket.setdefaulttimeout(TIMEOUT_S)  # timeout of the connection, and of an incomplete frame
        try:
            channel = stream(
                core.connect_get_namespaced_pod_exec, pod, namespace, container=container, command=[*command], **wanted
            )
        except ApiException as error:
            raise _exec_error(cut(printable(str(error.reason)), SAID_MAX), who) from error
        clock = SystemClock()
        deadline = clock.monotonic() + EXEC_S
        try:
            while channel.is_open():
                channel.update(timeout=1)
                for read, is_error in ((channel.read_stdout, False), (channel.read_stderr, True)):
                    text = read(timeout=0)
                    if text:
                        output(text, is_error)
                if clock.monotonic() > deadline:
                    raise errors.CommandFailed(
                        f"pod {who}: {' '.join(command)} has not ended within {EXEC_S:.0f} s; select fewer records, or "
                        "another pod"
                    )
            return _exit_code(channel.read_channel(ERROR_CHANNEL), who, command)
        except (websocket.WebSocketException, OSError) as error:
            raise errors.CommandFailed(f"pod {who}: the connection broke: {error}; run the command again") from error
        finally:
            channel.close()
            channel.sock.shutdown()  # if the server closes first, `close` leaves the socket open

    def _json(
        self,
        method: str,
        kind: Kind,
        namespace: str | None,
        name: str | None = None,
        *,
        query: Query | None = None,
        body: JsonObject | None = None,
    ) -> JsonObject:
        answer = self._send(method, kind.path(namespace, name), query or {}, body=body)
        self._check(answer, kind, namespace, name or ((body or {}).get("metadata") or {}).get("name"))
        return _parsed(answer.data, f"{kind.plural}: the answer")

    def _send(
        self,
        method: str,
        path: str,
        query: Query,
        *,
        body: JsonObject | None = None,
        read_s: float | None = TIMEOUT_S,
    ) -> Any:
        headers = {"Accept": JSON, **({"Content-Type": JSON} if body is not None else {})}
        verb, url, headers, body, form = self._client.param_serialize(
            method, path, None, [*query.items()], headers, body, auth_settings=["BearerToken"]
        )
        try:
            return self._client.call_api(verb, url, headers, body, form, _request_timeout=(CONNECT_S, read_s)).response
        except (ApiException, HTTPError, OSError) as error:
            raise self._unreachable(error) from error

    def _unreachable(self, error: Exception) -> errors.FleetError:
        seen = getattr(error, "reason", None) or error
        host = self._client.configuration.host
        return errors.NoCluster(
            f"the API server {host} does not respond: {seen}; check the cluster and the context (kubectl cluster-info)"
        )

    def _check(self, answer: Any, kind: Kind, namespace: str | None, name: str | None) -> None:
        if answer.status >= HTTPStatus.BAD_REQUEST:
            raise error_of(answer.status, answer.data, Target(kind, namespace, name))


def open_api(kubeconfig_file: str | None, context: str | None, namespace: str | None) -> Api:
    """Create a client from the kubeconfig (the option, KUBECONFIG, ~/.kube/config) or, in a pod without a kubeconfig,
    from the pod's service account.

    Raises NoCluster.
    """
    try:
        client = CONFIG.new_client_from_config(config_file=kubeconfig_file, context=context)
        named, active = CONFIG.list_kube_config_contexts(config_file=kubeconfig_file)
        if context is not None:
            active = next(each for each in named if each["name"] == context)
        default = active["context"].get("namespace") or "default"
    except (CONFIG.ConfigException, OSError, yaml.YAMLError) as error:
        if kubeconfig_file is not None or context is not None:
            raise _no_kubeconfig(error, kubeconfig_file) from error
        try:
            CONFIG.load_incluster_config()
        except CONFIG.ConfigException:
            raise _no_kubeconfig(error) from error
        client, default = kube.ApiClient(), _own_namespace()
    return Api(client, namespace or default)


def _own_namespace() -> str:
    """The namespace of this process's pod, or `default`."""
    try:
        return NAMESPACE_FILE.read_text().strip() or "default"
    except OSError:
        return "default"


def _no_kubeconfig(error: Exception, kubeconfig_file: str | None = None) -> errors.NoCluster:
    """Return the error of a client without a cluster. The Kubernetes client does not say that a file is missing."""
    files = [kubeconfig_file] if kubeconfig_file else os.environ.get("KUBECONFIG", "").split(os.pathsep)
    absent = [file for file in files if file and not Path(file).exists()]
    cause = f"the kubeconfig {', '.join(absent)} does not exist" if absent else str(error).rstrip(".")
    return errors.NoCluster(
        f"no cluster is configured: {cause}; name a file by --kubeconfig or KUBECONFIG, or a context by --context "
        "(kubectl config get-contexts)"
    )


@dataclass(frozen=True, slots=True)
class Target:
    """The object or the list that a request is about."""

    kind: Kind
    namespace: str | None
    name: str | None

    def __str__(self) -> str:
        place = f"namespace {self.namespace}" if self.namespace is not None else "all namespaces"
        return f"{self.kind} {self.namespace}/{self.name}" if self.name else f"{self.kind.plural} of {place}"


def error_of(status: int, body: bytes, target: Target) -> errors.FleetError:
    """The error for a refused request: the API server's message, and advice."""
    said = body.decode("utf-8", "replace").strip()
    details: JsonObject = {}
    with suppress(ValueError, RecursionError):  # a proxy in front of the API server may answer with an HTML page
        answer = json.loads(said)
        if isinstance(answer, dict):
            said, details = str(answer.get("message") or said), answer.get("details") or {}
    said = cut(printable(said), SAID_MAX)
    plural = f"{target.kind.plural}.{target.kind.group}".rstrip(".")
    if status == HTTPStatus.UNAUTHORIZED:
        return errors.NotLoggedIn(f"{target}: the API server does not accept your credentials; log in again")
    if status == HTTPStatus.FORBIDDEN:
        hint = "read only one namespace with --namespace, or " if target.namespace is None else ""
        shown = "kubectl auth can-i --list" + (f" -n {target.namespace}" if target.namespace is not None else "")
        return errors.Forbidden(f"{target}: {said}; {hint}ask for this permission ({shown} lists yours)")
    if status == HTTPStatus.NOT_FOUND and not details.get("name") and target.kind.group == OUR_GROUP:
        return errors.KindsNotInstalled(
            f"{plural}: this cluster does not have the CRD; install Consumer Fleet, or choose another --context"
        )
    if status == HTTPStatus.NOT_FOUND:
        return errors.ObjectNotFound(
            f"{target} does not exist; list existing objects: `kubectl get {target.kind.plural} -n {target.namespace}`"
        )
    if status == HTTPStatus.GONE:
        return ListExpired(f"{target}: the API server no longer has the rest of the list: {said}; try again")
    return errors.RefusedByApiServer(f"{target}: the API server answered {status}: {said}; correct this, or try again")


def _parsed(data: bytes, what: str) -> JsonObject:
    """Parse a JSON object from a response. Raises NoCluster for other data, such as a proxy's HTML page or a truncated
    line."""
    try:
        found = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise errors.NoCluster(f"{what} cannot be read: {error}; try again, or check proxies") from error
    if not isinstance(found, dict):
        raise errors.NoCluster(f"{what} is not a JSON object; check proxies to the API server")
    return found


def _exec_error(said: str, pod: str) -> errors.FleetError:
    if "403" in said or "forbidden" in said.lower():
        return errors.Forbidden(
            f"pod {pod}: you lack permission to run a command in it: {said}; ask for the verb create on pods/exec"
        )
    return errors.CommandFailed(f"pod {pod}: no command could be started in it: {said}; try again, or see its logs")


def _exit_code(said: str, pod: str, command: Sequence[str]) -> int:
    """Read the exit code from the Status object with which an exec ends. Raises CommandFailed."""
    status = yaml.safe_load(said) if said else None
    if isinstance(status, dict) and status.get("status") == "Success":
        return 0
    details = (status.get("details") or {}) if isinstance(status, dict) else {}
    for cause in details.get("causes") or ():
        if cause.get("reason") == "ExitCode":
            return int(cause["message"])
    seen = status.get("message") if isinstance(status, dict) else "the connection ended before the command did"
    raise errors.CommandFailed(f"pod {pod}: {' '.join(command)}: {seen}; run the command again")


def _lines(answer: Any) -> Iterator[bytes]:
    """Yield the lines of a streamed body as they arrive, without line ends."""
    rest = b""
    try:
        for chunk in answer.stream(None, decode_content=True):
            *whole, rest = (rest + chunk).split(b"\n")
            yield from whole
    except (HTTPError, OSError) as error:
        raise errors.NoCluster(f"the API server ended the stream: {error}; run the command again") from error
    finally:
        answer.close()
    if rest:
        yield rest
