"""Ports: free, held, and out of the way of outgoing connections."""

from __future__ import annotations

import errno
import socket
from pathlib import Path

import pytest

from kubeocean.errors import LocalError
from kubeocean.local import ports
from kubeocean.local.ports import reserve, why_not

_LOOPBACK = ("127.0.0.1", 0)


def _outgoing() -> tuple[int, int]:
    low, high = Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()
    return int(low), int(high)


def test_reserved_ports_are_held_until_released() -> None:
    with reserve(_LOOPBACK, _LOOPBACK) as held:
        first, second = held.ports
        assert first != second
        assert why_not(first)
        assert why_not(second)
    assert not why_not(first)
    assert not why_not(second)


def test_ports_are_not_those_of_outgoing_connections() -> None:
    low, high = _outgoing()
    with reserve(*[_LOOPBACK] * 20) as held:
        assert not [port for port in held.ports if low <= port <= high]


def test_a_wanted_port_is_taken_while_it_is_free() -> None:
    with reserve(_LOOPBACK) as held:
        (wanted,) = held.ports
        with reserve(("127.0.0.1", wanted)) as other:
            assert other.ports != (wanted,)
    with reserve(("127.0.0.1", wanted)) as again:
        assert again.ports == (wanted,)


def test_a_port_with_a_listener_is_in_use() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        assert "is in use" in why_not(server.getsockname()[1])


def test_a_port_that_needs_privileges_is_not_reported_as_in_use(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(address: str, port: int) -> socket.socket:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(ports, "_bind", refuse)
    assert why_not(80) == "port 80 of 127.0.0.1 is for root only; choose one from 1024 on"
    monkeypatch.undo()
    assert why_not(8080, "192.0.2.7") == "port 8080 of 192.0.2.7: Cannot assign requested address"


def test_ports_of_an_ipv6_address_can_be_held() -> None:
    with reserve(("::1", 0)) as held:
        assert why_not(held.ports[0], "::1")


def test_an_address_that_is_not_ours_is_an_error() -> None:
    with pytest.raises(LocalError, match=r"192\.0\.2\.7"):
        reserve(_LOOPBACK, ("192.0.2.7", 0))
