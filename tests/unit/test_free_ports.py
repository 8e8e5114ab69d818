"""Ports for servers of tests, given in turn to all processes of the machine."""

from __future__ import annotations

import socket
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from e2e.local_cluster.daemons import PORT_RANGE, free_ports


def test_port_is_given_once_although_nobody_listens_on_it_yet(tmp_path: Path) -> None:
    """Suites side by side took one port for two workers, and the later one ended with EADDRINUSE."""
    turn = tmp_path / "turn"
    with ThreadPoolExecutor(4) as pool:
        given = [port for ports in pool.map(lambda _: free_ports(25, turn=turn), range(20)) for port in ports]
    assert len(set(given)) == len(given) == 500


def test_ports_begin_anew_after_the_last_one_and_pass_those_in_use_by(tmp_path: Path) -> None:
    turn = tmp_path / "turn"
    turn.write_text(str(len(PORT_RANGE) - 1))
    with socket.socket() as taken:
        for port in PORT_RANGE:
            try:
                taken.bind(("127.0.0.1", port))
            except OSError:
                continue
            break
        (given,) = free_ports(1, turn=turn)
    assert port < given < port + 500


def test_spoilt_turn_is_no_obstacle(tmp_path: Path) -> None:
    turn = tmp_path / "turn"
    turn.write_text("x")
    assert free_ports(1, turn=turn)[0] in PORT_RANGE
