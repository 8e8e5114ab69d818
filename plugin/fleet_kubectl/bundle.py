"""`support-bundle`: one file, without secrets, with the objects, Events and logs that help to diagnose a
ConsumerGroup."""

import io
import json
import os
import tarfile
from argparse import Namespace
from collections.abc import Iterable
from typing import Final

from fleet_consumer.clock import SystemClock
from fleet_consumer.distribution import own_version
from fleet_kubectl.api import Api
from fleet_kubectl.commands import selector
from fleet_kubectl.errors import FileNotWritten, FleetError
from fleet_kubectl.explaining import Facts, explain
from fleet_kubectl.options import EXIT_OK
from fleet_kubectl.redaction import redacted, redacted_text
from fleet_kubectl.tables import printable
from fleet_operator.clients import kinds
from fleet_operator.clients.kinds import JsonObject, Kind
from fleet_operator.planning import times

CHILDREN: Final = (
    *(kinds.STATEFUL_SET, kinds.POD, kinds.JOB, kinds.SERVICE, kinds.CONFIG_MAP),
    *(kinds.POD_DISRUPTION_BUDGET, kinds.SERVICE_ACCOUNT),
)
RUNS: Final = (kinds.REDRIVE, kinds.OFFSET_RESET)
OPERATOR_SELECTOR: Final = "app.kubernetes.io/component=operator,app.kubernetes.io/name=consumer-fleet"


class Bundle:
    """The files of a bundle. Everything that is added is redacted first."""

    def __init__(self, now: float) -> None:
        self._now = int(now)
        self._data = io.BytesIO()
        self._tar = tarfile.open(fileobj=self._data, mode="w:gz")  # noqa: SIM115 - closed by `finish`
        self.unread: list[str] = []
        self.names: list[str] = []

    def add_object(self, kind: Kind, body: JsonObject) -> None:
        body = {"apiVersion": kind.api_version, "kind": kind.kind, **body}
        name = f"objects/{kind.plural}/{body['metadata']['name']}.json"
        self._add(name, json.dumps(redacted(body), indent=1, sort_keys=True))

    def add_text(self, name: str, text: str) -> None:
        self._add(name, redacted_text(text))

    def could_not(self, what: str, error: FleetError) -> None:
        self.unread.append(f"{what}: {error.reason}: {error}")

    def finish(self, title: str) -> bytes:
        """Add README.txt as the last file, and return the bytes of the tar.gz file."""
        unread = [redacted_text(f"  {line}") for line in self.unread] or ["  nothing: everything could be read"]
        lines = (title, "", "Could not be read:", *unread, "", "Files:", *(f"  {name}" for name in self.names), "")
        self._add("README.txt", "\n".join(lines))
        self._tar.close()
        return self._data.getvalue()

    def _add(self, name: str, text: str) -> None:
        data = text.encode()
        entry = tarfile.TarInfo(f"fleet/{name}")
        entry.size, entry.mtime, entry.mode = len(data), self._now, 0o600
        self._tar.addfile(entry, io.BytesIO(data))
        self.names.append(name)


def support_bundle(api: Api, options: Namespace) -> int:
    now = SystemClock().wall()
    group = api.get(kinds.CONSUMER_GROUP, api.namespace, options.group)
    stamp = times.to_text(now)
    path = options.output or f"fleet-{api.namespace}-{options.group}-{stamp.replace(':', '')}.tar.gz"
    bundle = Bundle(now)
    file = _created(path)
    try:
        with open(file, "wb") as out:
            collect(api, bundle, group, options)
            size = out.write(_finished(api, options, bundle, stamp))
    except BaseException as error:
        os.unlink(path)
        if isinstance(error, OSError):
            raise FileNotWritten(f"{path}: {error.strerror}; choose another file with --output") from error
        raise
    print(f"{path}: {len(bundle.names)} files, {size} bytes")
    for line in bundle.unread:
        print(f"  not read: {printable(redacted_text(line))}")
    return EXIT_OK


def _created(path: str) -> int:
    """Create a file that only this user can read, because logs may contain data of records. Raises FileNotWritten."""
    try:
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    except FileExistsError as error:
        raise FileNotWritten(f"{path} exists; delete it, or choose another file with --output") from error
    except OSError as error:
        raise FileNotWritten(f"{path}: {error.strerror}; choose a file that you may write with --output") from error


def _finished(api: Api, options: Namespace, bundle: Bundle, stamp: str) -> bytes:
    title = f"Support bundle of ConsumerGroup {api.namespace}/{options.group}, {stamp}, kubectl-fleet {own_version()}"
    return bundle.finish(
        f"{title}\n\nSecrets were not read. Values of environment variables, headers and ConfigMaps are left out, and "
        "text\nthat resembles a password or a token is replaced. Logs can contain output of your handler: read them "
        "before\nyou share this file."
    )


def collect(api: Api, bundle: Bundle, group: JsonObject, options: Namespace) -> None:
    """Add the group, the objects that it refers to, its children, Events, logs and, if permitted, the operator's
    log."""
    namespace, name, spec = api.namespace, options.group, group.get("spec") or {}
    bundle.add_object(kinds.CONSUMER_GROUP, group)
    named = {
        kinds.OPERATOR_STATE: name,
        kinds.KAFKA_CLUSTER: (spec.get("clusterRef") or {}).get("name"),
        kinds.RETRY_POLICY: ((spec.get("retry") or {}).get("policyRef") or {}).get("name"),
    }
    for kind, wanted in named.items():
        if wanted:
            _add_one(api, bundle, kind, wanted)
    of_group = {"fieldSelector": f"spec.groupRef.name={name}"}
    found = {kind: _add_all(api, bundle, kind, namespace, of_group) for kind in RUNS}
    backfills = _list(api, bundle, kinds.BACKFILL, namespace, {})
    for body in backfills:
        if ((body.get("spec") or {}).get("groupRef") or {}).get("name") == name:
            bundle.add_object(kinds.BACKFILL, body)
    children = {kind: _add_all(api, bundle, kind, namespace, selector(name)) for kind in CHILDREN}
    _add_events(
        api,
        bundle,
        {name, *(each["metadata"]["name"] for many in (*found.values(), *children.values()) for each in many)},
    )
    pods = children[kinds.POD]
    # Secrets are removed before long messages are wrapped and cut, because a cut secret may not be recognized.
    runs = [redacted({**run, "kind": kind.kind}) for kind, many in found.items() for run in many]
    facts = Facts(redacted(group), [redacted(pod) for pod in pods], runs)
    bundle.add_text("explain.txt", "\n".join(explain(facts, SystemClock().wall())) + "\n")
    for pod in pods:
        _add_logs(api, bundle, namespace, pod, options.tail)
    where = options.operator_namespace
    for pod in _list(api, bundle, kinds.POD, where, {"labelSelector": OPERATOR_SELECTOR}):
        _add_logs(api, bundle, where, pod, options.tail)


def _add_one(api: Api, bundle: Bundle, kind: Kind, name: str) -> None:
    try:
        bundle.add_object(kind, api.get(kind, api.namespace, name))
    except FleetError as error:
        bundle.could_not(f"{kind} {name}", error)


def _add_all(api: Api, bundle: Bundle, kind: Kind, namespace: str, query: dict[str, str]) -> list[JsonObject]:
    found = _list(api, bundle, kind, namespace, query)
    for body in found:
        bundle.add_object(kind, body)
    return found


def _list(api: Api, bundle: Bundle, kind: Kind, namespace: str, query: dict[str, str]) -> list[JsonObject]:
    try:
        return api.list(kind, namespace, query).items
    except FleetError as error:
        bundle.could_not(f"{kind.plural} of namespace {namespace}", error)
        return []


def _add_events(api: Api, bundle: Bundle, names: Iterable[str]) -> None:
    """Add the Events about these objects as one list, oldest first. Events are read for the whole namespace."""
    about = set(names)
    events = [
        each
        for each in _list(api, bundle, kinds.EVENT, api.namespace, {})
        if (each.get("regarding") or {}).get("name") in about
    ]
    events.sort(key=lambda each: str(each.get("eventTime") or each.get("deprecatedLastTimestamp") or ""))
    lines = []
    for each in events:
        when = each.get("eventTime") or each.get("deprecatedLastTimestamp") or "-"
        what = f"{each['regarding'].get('kind')}/{each['regarding']['name']}"
        lines.append(f"{when}  {each.get('type')}  {what}  {each.get('reason')}  {each.get('note', '')}")
    bundle.add_text("events.txt", "\n".join(lines) + "\n")


def _add_logs(api: Api, bundle: Bundle, namespace: str, pod: JsonObject, tail: int) -> None:
    """Add the logs of all containers of a pod, including init containers, and the logs from before the last restart."""
    name, spec, status = pod["metadata"]["name"], pod.get("spec") or {}, pod.get("status") or {}
    statuses = (*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ()))
    restarted = {each["name"] for each in statuses if each.get("restartCount")}
    containers = (*(spec.get("initContainers") or ()), *(spec.get("containers") or ()))
    for container in (each["name"] for each in containers):
        for previous in (False, True):
            if previous and container not in restarted:
                continue
            query = {"container": container, "tailLines": str(tail), "timestamps": "true"}
            what = f"logs/{namespace}/{name}/{container}{'-previous' if previous else ''}.log"
            try:
                lines = api.log(namespace, name, query | ({"previous": "true"} if previous else {}))
                bundle.add_text(what, "".join(f"{line}\n" for line in lines))
            except FleetError as error:
                bundle.could_not(what, error)
