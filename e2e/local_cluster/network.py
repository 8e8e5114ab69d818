"""The one link between a cluster and its host: a pair of virtual interfaces and a network of two addresses.

The host gets only an interface and an address: no route except the link's, no firewall rule, no forwarding. So programs
inside can reach, and be reached from, this machine only.
"""

import ipaddress
import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from e2e.local_cluster.cache import file_lock
from e2e.local_cluster.commands import output, run
from e2e.local_cluster.errors import ClusterError
from e2e.local_cluster.instance import Instance, existing_instances

__all__ = ["NODE_INTERFACE", "Link", "attach", "detach", "link_exists", "reserve_link"]

NODE_INTERFACE = "node0"
# 256 pairs, in a part of the private range that home and office networks rarely use; used ones are skipped anyway.
CANDIDATES = ipaddress.ip_network("192.168.232.0/22")
# Addresses belong to the machine, not to one FLEET_HOME, so their lock does too.
MACHINE_LOCK = Path("/run/lock/consumer-fleet-network.lock")


@dataclass(frozen=True, slots=True)
class Link:
    """The two ends' addresses."""

    host: str
    node: str
    prefix: int = 30


def reserve_link(instance: Instance) -> Link:
    """The instance's addresses: its present ones, unless they are used otherwise by now, or else a free pair.

    Raises ClusterError (``NoFreeAddress``).
    """
    with file_lock(MACHINE_LOCK, purpose="choosing an address"):
        taken = list(_routed_networks(except_link=instance.link))
        taken += [_network(link) for link in _reservations(except_for=instance)]
        present = _read(instance.network_file)
        if present and not any(_network(present).overlaps(other) for other in taken):
            return present
        for candidate in CANDIDATES.subnets(new_prefix=30):
            if not any(candidate.overlaps(other) for other in taken):
                host, node = (str(address) for address in candidate.hosts())
                instance.network_file.write_text(json.dumps({"host": host, "node": node}) + "\n")
                return Link(host, node)
    raise ClusterError(
        "NoFreeAddress",
        f"every /30 of {CANDIDATES} is in use or routed on this machine; see `ip route`, and end clusters you no "
        "longer need with `python -m e2e.local_cluster down --name NAME`",
    )


def attach(instance: Instance, link: Link, pid: int) -> None:
    """Connect the network namespace of process ``pid`` to the host. The end inside is called ``node0`` and is unset."""
    detach(instance)
    run(["ip", "link", "add", instance.link, "type", "veth", "peer", "name", NODE_INTERFACE, "netns", str(pid)])
    run(["ip", "address", "add", f"{link.host}/{link.prefix}", "dev", instance.link])
    run(["ip", "link", "set", instance.link, "up"])


def detach(instance: Instance) -> None:
    """Remove the host's end, and with it the other one."""
    if link_exists(instance):
        # The kernel removes a link when the namespace of the other end ends: losing that race is success.
        output(["ip", "link", "delete", instance.link])
    if link_exists(instance):
        raise ClusterError("LinkStays", f"`ip link delete {instance.link}` did not remove the link; try it by hand")


def link_exists(instance: Instance) -> bool:
    """True while the host's end exists."""
    return Path("/sys/class/net", instance.link).exists()


def _routed_networks(*, except_link: str) -> Iterable[ipaddress.IPv4Network]:
    for route in json.loads(run(["ip", "-4", "-json", "route", "show", "table", "all"]) or "[]"):
        destination = route.get("dst", "default")
        if destination == "default" or route.get("dev") == except_link:
            continue
        yield ipaddress.IPv4Network(destination, strict=False)


def _reservations(*, except_for: Instance) -> Iterable[Link]:
    for other in existing_instances():
        link = _read(other.network_file) if other != except_for else None
        if link:
            yield link


def _read(file: Path) -> Link | None:
    try:
        content = json.loads(file.read_text())
        return Link(content["host"], content["node"])
    except (OSError, ValueError, KeyError):
        return None  # Missing, or incomplete after a crash: nothing is reserved.


def _network(link: Link) -> ipaddress.IPv4Network:
    return ipaddress.IPv4Network(f"{link.host}/{link.prefix}", strict=False)
