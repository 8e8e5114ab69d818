"""A real Kafka broker on loopback, which tests can stop, kill, pause and restart with its data."""

import shutil
import signal
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from e2e.local_cluster.commands import run
from e2e.local_cluster.daemons import Daemon, free_ports
from e2e.local_cluster.jars import ensure_kafka_jars
from e2e.local_cluster.kafka_node import (
    HEAP_MIB,
    SASL_LISTENER,
    find_java,
    format_properties,
    java_command,
    node_properties,
    sasl_properties,
    scram_arguments,
)
from e2e.local_cluster.waiting import wait_until
from tests.support.kafka_security import MUTUAL_LISTENER, SASL_TLS_LISTENER, TLS_LISTENER, BrokerPki, TokenIssuer
from tests.support.kafka_template import ADDRESS, STARTED, new_cluster_id, quick_jvm, static_quorum, write_storage
from tests.support.lifetime import Server

__all__ = ["ADDRESS", "KafkaBroker", "Place"]

START_TIMEOUT_S = 180.0
FREEZE_TIMEOUT_S = 60.0
PROXIED_LISTENER = "PROXIED"


@dataclass(frozen=True, slots=True)
class Place:
    """A broker's place in a cluster: its id, the cluster's id, and the controllers' addresses by node id."""

    node_id: int
    cluster_id: str
    controllers: Mapping[int, str]


class KafkaBroker(Server):
    """A broker and controller, as a context manager: of its own cluster, or of the one at ``place``.

    ``properties`` are added to the broker's settings and win over them. ``sasl_users`` (name to password) opens a
    second listener, SASL_PLAINTEXT, that knows these users under PLAIN, SCRAM-SHA-256 and SCRAM-SHA-512. Ports and data
    stay the same over ``stop``, ``kill`` and ``start``; leaving the context removes everything. Topics are not created
    automatically. ``proxied_as`` opens a plain-text listener that advertises this ``host:port``, where a test listens
    and forwards to `proxied_listener`. ``jvm_options`` are added to the command line.

    ``tls`` opens a TLS listener; with "mutual" also one that asks for a client certificate; with users or tokens also
    one with TLS and SASL. ``pki`` then holds the files. With ``oauth`` the SASL listeners accept tokens of ``issuer``.
    """

    def __init__(
        self,
        *,
        properties: Mapping[str, str] | None = None,
        sasl_users: Mapping[str, str] | None = None,
        place: Place | None = None,
        proxied_as: str | None = None,
        jvm_options: Sequence[str] = (),
        tls: bool | Literal["mutual"] = False,
        oauth: bool = False,
    ) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="fleet-kafka-"))
        self.log = self.directory / "broker.log"
        self._users = dict(sasl_users or {})
        self._java = find_java()
        self._jars = ensure_kafka_jars()
        self._properties = self.directory / "server.properties"
        plain_port, controller_port, sasl_port, proxied_port, *tls_ports = free_ports(7, ADDRESS)
        self._place = place or Place(1, new_cluster_id(), {1: f"{ADDRESS}:{controller_port}"})
        self._pki = BrokerPki(self.directory / "pki") if tls else None
        self._issuer = TokenIssuer(self.directory / "issuer") if oauth else None
        self.port = plain_port
        listeners = {"PLAINTEXT": f"{ADDRESS}:{plain_port}"}
        if self._users or oauth:
            listeners[SASL_LISTENER] = f"{ADDRESS}:{sasl_port}"
        if tls:
            listeners[TLS_LISTENER] = f"{ADDRESS}:{tls_ports[0]}"
        if tls == "mutual":
            listeners[MUTUAL_LISTENER] = f"{ADDRESS}:{tls_ports[1]}"
        if tls and SASL_LISTENER in listeners:
            listeners[SASL_TLS_LISTENER] = f"{ADDRESS}:{tls_ports[2]}"
        if proxied_as is not None:
            listeners[PROXIED_LISTENER] = f"{ADDRESS}:{proxied_port}"
        self._listeners = listeners
        settings = node_properties(
            data=str(self.directory / "data"),
            listeners=listeners,
            advertised=listeners | ({PROXIED_LISTENER: proxied_as} if proxied_as is not None else {}),
            controller=self._place.controllers[self._place.node_id],
            inter_broker="PLAINTEXT",
        )
        settings = static_quorum(settings, self._place.controllers, node_id=self._place.node_id)
        if self._users:
            settings |= sasl_properties(self._users)
        settings |= self._security_settings(settings)
        self._properties.write_text(format_properties(settings | dict(properties or {})))
        options = [f"-Xmx{HEAP_MIB}m", f"-XX:ErrorFile={self.directory}/jvm-error.log", *quick_jvm(), *jvm_options]
        options += self._issuer.jvm_options if self._issuer is not None else []
        self._daemon = Daemon(
            "kafka",
            java_command(self._java, self._jars, "kafka.Kafka", str(self._properties), options=options),
            log=self.log,
        )
        self._log_start = 0

    @property
    def bootstrap(self) -> str:
        """``host:port`` of the plain-text listener."""
        return self._listeners["PLAINTEXT"]

    @property
    def sasl_bootstrap(self) -> str:
        """``host:port`` of the listener that asks for a password; only with ``sasl_users``."""
        return self._listeners[SASL_LISTENER]

    @property
    def tls_bootstrap(self) -> str:
        """``host:port`` of the TLS listener; only with ``tls``."""
        return self._listeners[TLS_LISTENER]

    @property
    def mutual_bootstrap(self) -> str:
        """``host:port`` of the TLS listener that asks for a client certificate; only with ``tls="mutual"``."""
        return self._listeners[MUTUAL_LISTENER]

    @property
    def sasl_tls_bootstrap(self) -> str:
        """``host:port`` of the listener with TLS and SASL; only with ``tls`` and users or tokens."""
        return self._listeners[SASL_TLS_LISTENER]

    @property
    def pki(self) -> BrokerPki:
        """The certificates; only with ``tls``."""
        assert self._pki is not None, "this broker has no TLS"
        return self._pki

    @property
    def issuer(self) -> TokenIssuer:
        """The issuer of the tokens that the broker accepts; only with ``oauth``."""
        assert self._issuer is not None, "this broker accepts no tokens"
        return self._issuer

    @property
    def proxied_listener(self) -> str:
        """``host:port`` behind the proxy; only with ``proxied_as``."""
        return self._listeners[PROXIED_LISTENER]

    @property
    def running(self) -> bool:
        """True while the broker's process exists; a paused one does."""
        return self._daemon.running

    @property
    def pid(self) -> int:
        """The broker's process id."""
        return self._daemon.pid

    def start(self) -> None:
        """Start the broker, at first with fresh storage, and wait until it is part of its cluster."""
        if not (self.directory / "data").exists():
            self._format()
        self._log_start = self.log.stat().st_size if self.log.exists() else 0
        self._daemon.start()
        wait_until(
            self._started,
            what=f"the broker at {self.bootstrap} to start",
            timeout_s=START_TIMEOUT_S,
            last_seen=self._daemon.log_tail,
        )

    def stop(self) -> None:
        """Stop the broker cleanly: it hands over leaderships and closes its logs."""
        self._daemon.stop()

    def kill(self) -> None:
        """Kill the broker as in a crash (SIGKILL)."""
        self._daemon.kill()

    def move(self) -> None:
        """Use another port for the plain-text listener from the next start; only while stopped."""
        assert not self.running, "a broker moves while it is stopped"
        before = self.bootstrap
        (self.port,) = free_ports(1, ADDRESS)
        self._listeners["PLAINTEXT"] = f"{ADDRESS}:{self.port}"
        self._properties.write_text(self._properties.read_text().replace(before, self.bootstrap))

    def pause(self) -> None:
        """Freeze the broker: connections stay open without responses (SIGSTOP).

        Each thread stops when it sees the signal, and a thread that still runs may answer a request; wait for all.
        """
        self._daemon.signal(signal.SIGSTOP)
        wait_until(self._frozen, what=f"the broker at {self.bootstrap} to freeze", timeout_s=FREEZE_TIMEOUT_S)

    def resume(self) -> None:
        """Resume a paused broker (SIGCONT)."""
        self._daemon.signal(signal.SIGCONT)

    def close(self) -> None:
        """End the broker and remove its files."""
        self._daemon.kill()
        shutil.rmtree(self.directory, ignore_errors=True)

    def tool(self, main_class: str, *args: str) -> str:
        """Run one of Kafka's own tools (``org.apache.kafka.tools.TopicCommand``) and return what it prints.

        It starts a JVM and so costs about a second; raises ClusterError with the tool's complaint.
        """
        options = [*quick_jvm(), "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"]
        return run(java_command(self._java, self._jars, main_class, *args, options=options), reason="KafkaToolFailed")

    def _security_settings(self, settings: Mapping[str, str]) -> dict[str, str]:
        """The settings of listeners with TLS or tokens, on top of those that a plain node has."""
        added: dict[str, str] = {}
        sasl = [name for name in (SASL_LISTENER, SASL_TLS_LISTENER) if name in self._listeners]
        if self._pki is not None:
            secured = {TLS_LISTENER: "SSL", MUTUAL_LISTENER: "SSL", SASL_TLS_LISTENER: "SASL_SSL"}
            protocols = {name: protocol for name, protocol in secured.items() if name in self._listeners}
            known = dict(each.split(":") for each in settings["listener.security.protocol.map"].split(","))
            added["listener.security.protocol.map"] = ",".join(f"{k}:{v}" for k, v in (known | protocols).items())
            for listener in protocols:
                added |= self._pki.listener_settings(listener, mutual=listener == MUTUAL_LISTENER)
        if self._users and SASL_TLS_LISTENER in sasl:
            own, other = f"listener.name.{SASL_LISTENER.lower()}.", f"listener.name.{SASL_TLS_LISTENER.lower()}."
            added |= {key.replace(own, other): value for key, value in settings.items() if key.startswith(own)}
        if self._issuer is not None:
            mechanisms = settings.get("sasl.enabled.mechanisms", "")
            added["sasl.enabled.mechanisms"] = ",".join(filter(None, (mechanisms, "OAUTHBEARER")))
            added |= self._issuer.listener_settings(sasl)
        return added

    def _frozen(self) -> bool:
        tasks = Path(f"/proc/{self.pid}/task")
        try:
            # The state is the first word after the command's name, which is in parentheses and may contain anything.
            states = {(task / "stat").read_text().rpartition(")")[2].split()[0] for task in tasks.iterdir()}
        except (FileNotFoundError, ProcessLookupError):
            return False  # a thread that was still running has just ended
        return states == {"T"}

    def _format(self) -> None:
        if not self._users:
            write_storage(self.directory / "data", node_id=self._place.node_id, cluster_id=self._place.cluster_id)
            return
        # One word with its value: an id may begin with a dash, which would make it look like an option.
        arguments = ["format", f"--cluster-id={self._place.cluster_id}", "--config", str(self._properties)]
        self.tool("kafka.tools.StorageTool", *arguments, *scram_arguments(self._users))

    def _started(self) -> bool:
        self._daemon.check_running()
        with self.log.open("rb") as log:
            log.seek(self._log_start)
            return STARTED in log.read()
