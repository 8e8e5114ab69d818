"""Query of a name server until it answers; run inside a cluster, where its name server can be reached.

``python -m e2e.local_cluster.dns_probe SERVER NAME SECONDS``. The name server's pod is ready a moment before the
service rules lead to it, so only a good answer proves success.
"""

import socket
import struct
import sys
import time

from e2e.local_cluster.waiting import pause

ANSWER_TIMEOUT_S = 0.5


def query(name: str, identifier: int) -> bytes:
    """A question for the IPv4 address of ``name`` (RFC 1035, section 4.1)."""
    header = struct.pack("!HHHHHH", identifier, 0x0100, 1, 0, 0, 0)
    labels = b"".join(bytes([len(label)]) + label.encode() for label in name.split("."))
    return header + labels + b"\0" + struct.pack("!HH", 1, 1)


def has_answer(message: bytes, identifier: int) -> bool:
    """True if ``message`` answers the question with this identifier, without error, with a record."""
    if len(message) < 12:
        return False
    answered, flags, _, answers, _, _ = struct.unpack("!HHHHHH", message[:12])
    return bool(answered == identifier and flags & 0x8000 and flags & 0x000F == 0 and answers > 0)


def main() -> None:
    """Exit with 0 after the first good answer and with 1 if none came in time."""
    server, name, seconds = sys.argv[1], sys.argv[2], float(sys.argv[3])
    deadline = time.monotonic() + seconds
    identifier = 0
    while time.monotonic() < deadline:
        identifier += 1
        # A socket for each question: the kernel would keep the route of an old one after a change of the rules.
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
            client.settimeout(ANSWER_TIMEOUT_S)
            try:
                client.sendto(query(name, identifier), (server, 53))
                if has_answer(client.recv(4096), identifier):
                    return
            except OSError:
                pause(0.05)
                continue
        pause(0.05)
    raise SystemExit(f"no good answer for {name} from {server} within {seconds:.0f} s")


if __name__ == "__main__":
    main()
