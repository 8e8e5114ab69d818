"""One Kafka node, broker and controller at once: settings and command lines, for pods and for tests."""

import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from e2e.local_cluster.errors import ClusterError

__all__ = [
    "HEAP_MIB",
    "QUICK_JVM",
    "SASL_LISTENER",
    "find_java",
    "format_properties",
    "java_command",
    "node_properties",
    "sasl_properties",
    "scram_arguments",
]

HEAP_MIB = 384
# For a JVM that lives for minutes: few threads and cheap compilation halve the processor time.
QUICK_JVM = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
SASL_LISTENER = "SASL"
SCRAM_MECHANISMS = ("SCRAM-SHA-256", "SCRAM-SHA-512")

# A single node has every internal topic, starts groups without waiting for more members, and needs little memory. Fifty
# partitions of the offsets topic are Kafka's default, explicit because a group's partition depends on it.
SINGLE_NODE = {
    "process.roles": "broker,controller",
    "node.id": "1",
    "controller.listener.names": "CONTROLLER",
    "offsets.topic.num.partitions": "50",
    "offsets.topic.replication.factor": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    "group.initial.rebalance.delay.ms": "0",
    "log.cleaner.dedupe.buffer.size": "16777216",
    "auto.create.topics.enable": "false",
    # After a crash a node is accepted again when its former session has expired: 9 s by default.
    "broker.session.timeout.ms": "4000",
    "broker.heartbeat.interval.ms": "500",
}


def node_properties(
    *,
    data: str,
    listeners: Mapping[str, str],
    advertised: Mapping[str, str],
    controller: str,
    inter_broker: str,
) -> dict[str, str]:
    """Settings of a single node.

    ``listeners`` and ``advertised`` map a listener's name to ``host:port``, without the controller's, which is
    ``controller``. The listener named ``SASL`` asks for a password; every other is plain text.
    """
    protocols = {name: "SASL_PLAINTEXT" if name == SASL_LISTENER else "PLAINTEXT" for name in listeners}
    return {
        **SINGLE_NODE,
        "log.dirs": data,
        "listeners": _listener_list({**listeners, "CONTROLLER": controller}),
        "advertised.listeners": _listener_list(advertised),
        "listener.security.protocol.map": ",".join(
            f"{name}:{protocol}" for name, protocol in {**protocols, "CONTROLLER": "PLAINTEXT"}.items()
        ),
        "inter.broker.listener.name": inter_broker,
        "controller.quorum.bootstrap.servers": controller,
    }


def sasl_properties(users: Mapping[str, str]) -> dict[str, str]:
    """Settings of the SASL listener: PLAIN with these users, and SCRAM with those written at formatting."""
    prefix = f"listener.name.{SASL_LISTENER.lower()}"
    known = " ".join(f'user_{name}="{password}"' for name, password in users.items())
    plain = f"org.apache.kafka.common.security.plain.PlainLoginModule required {known};"
    scram = "org.apache.kafka.common.security.scram.ScramLoginModule required;"
    return {
        "sasl.enabled.mechanisms": ",".join(("PLAIN", *SCRAM_MECHANISMS)),
        f"{prefix}.plain.sasl.jaas.config": plain,
        **{f"{prefix}.{mechanism.lower()}.sasl.jaas.config": scram for mechanism in SCRAM_MECHANISMS},
    }


def format_properties(properties: Mapping[str, str]) -> str:
    """The text of a ``.properties`` file."""
    return "".join(f"{key}={value}\n" for key, value in properties.items())


def scram_arguments(users: Mapping[str, str]) -> list[str]:
    """Arguments of the storage tool that make these users known to SCRAM."""
    return [
        word
        for name, password in users.items()
        for mechanism in SCRAM_MECHANISMS
        for word in ("--add-scram", f"{mechanism}=[name={name},password={password}]")
    ]


def java_command(java: Path, jars: Path, main_class: str, *args: str, options: Sequence[str] = ()) -> list[str]:
    """Run a class of Kafka. The log goes to standard error, a line for each entry, with its time."""
    logging = "-Dorg.slf4j.simpleLogger"
    return [
        str(java),
        *options,
        f"{logging}.showDateTime=true",
        f"{logging}.dateTimeFormat=yyyy-MM-dd'T'HH:mm:ss.SSS",
        "-cp",
        f"{jars}/*",
        main_class,
        *args,
    ]


def find_java() -> Path:
    """The JVM to run Kafka with: ``JAVA_HOME``'s, else the one on the PATH; else ClusterError (``MissingPrograms``)."""
    home = os.environ.get("JAVA_HOME")
    if home and (Path(home) / "bin" / "java").exists():
        return Path(home) / "bin" / "java"
    found = shutil.which("java")
    if found is None:
        raise ClusterError(
            "MissingPrograms",
            "Kafka needs a Java 17 and there is none on the PATH or in JAVA_HOME; install one "
            "(Debian: apt-get install openjdk-17-jdk-headless)",
        )
    return Path(found)


def _listener_list(addresses: Mapping[str, str]) -> str:
    return ",".join(f"{name}://{address}" for name, address in addresses.items())
