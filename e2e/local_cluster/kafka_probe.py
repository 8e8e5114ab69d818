"""Probe of a Kafka broker by the smallest request that requires it to be part of its cluster: the list of brokers."""

import socket
import struct

__all__ = ["brokers"]

METADATA = 3
# The last version before the encoding of strings and arrays changed; all current brokers support it.
VERSION = 8
CLIENT = b"local-cluster"
TIMEOUT_S = 2.0


def brokers(host: str, port: int) -> int:
    """The number of brokers known to the one at this address; 0 if it does not answer."""
    # No topics, no creation of topics, no lists of permitted operations.
    body = struct.pack("!i???", 0, False, False, False)
    header = struct.pack("!hhih", METADATA, VERSION, 1, len(CLIENT)) + CLIENT
    message = header + body
    try:
        with socket.create_connection((host, port), TIMEOUT_S) as connection:
            connection.settimeout(TIMEOUT_S)
            connection.sendall(struct.pack("!i", len(message)) + message)
            size = struct.unpack("!i", _receive(connection, 4))[0]
            # Correlation id, throttle time, number of brokers.
            _, _, count = struct.unpack("!iii", _receive(connection, size)[:12])
    except (OSError, struct.error):
        return 0
    return int(count)


def _receive(connection: socket.socket, size: int) -> bytes:
    received = b""
    while len(received) < size:
        chunk = connection.recv(size - len(received))
        if not chunk:
            raise ConnectionResetError("closed in the middle of an answer")
        received += chunk
    return received
