"""Finds and reserves free ports for servers on this machine.

Ports are taken from below the range that the kernel uses for outgoing connections. A port from
within that range can be lost while its server restarts: to any outgoing connection, or to a client
of that very server, whose retry on loopback may connect to itself and hold the port.
"""

from __future__ import annotations

import errno
import ipaddress
import itertools
import random
import socket
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType

from kubeocean.errors import LocalError

__all__ = ["Reserved", "reserve", "why_not"]

_RANGE_FILE = Path("/proc/sys/net/ipv4/ip_local_port_range")
_LOWEST = 10_000  # lower ports belong to well-known services, which may not be running right now
_FALLBACK = 32_768  # the kernel's default start of the outgoing range
_UNPRIVILEGED = 1024
_TRIES = 200


class Reserved:
    """Ports held for a server until its start; `release` frees them."""

    def __init__(self, sockets: Iterable[socket.socket]) -> None:
        self._sockets = list(sockets)
        self.ports = tuple(int(held.getsockname()[1]) for held in self._sockets)

    def release(self) -> None:
        """Close the sockets that hold the ports, so that a server can bind them."""
        for held in self._sockets:
            held.close()
        self._sockets.clear()

    def __enter__(self) -> Reserved:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.release()


def reserve(*wanted: tuple[str, int]) -> Reserved:
    """Hold a port for each address: the requested number if free, else any other.

    :raises LocalError: no port is free, or the machine does not have the address.
    """
    held: list[socket.socket] = []
    try:
        for address, port in wanted:
            held.append(_hold(address, port))
    except LocalError:
        Reserved(held).release()
        raise
    return Reserved(held)


def _hold(address: str, port: int) -> socket.socket:
    highest = _outgoing_start()
    lowest = _LOWEST if highest > _LOWEST + 1000 else _UNPRIVILEGED
    # Random numbers, so that two programs that look for ports at the same time rarely collide.
    others = (random.randrange(lowest, highest) for _ in range(_TRIES))  # noqa: S311 no secret
    reason = ""
    for candidate in itertools.chain([port] if port else [], others):
        try:
            return _bind(address, candidate)
        except OSError as error:
            reason = error.strerror or str(error)
    raise LocalError(f"could not find a free port on {address}: {reason}")


def why_not(port: int, address: str = "127.0.0.1") -> str:
    """Return why a server cannot use this port now, and the remedy; empty if the port is free."""
    try:
        _bind(address, port).close()
    except PermissionError:
        return f"port {port} of {address} is for root only; choose one from {_UNPRIVILEGED} on"
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            return f"port {port} of {address}: {error.strerror}"
        return (
            f"port {port} of {address} is in use (`ss -ltnp sport = :{port}` shows the process); "
            f"stop that or choose another port"
        )
    return ""


def _bind(address: str, port: int) -> socket.socket:
    version = ipaddress.ip_address(address).version
    held = socket.socket(socket.AF_INET if version == 4 else socket.AF_INET6, socket.SOCK_STREAM)
    # As the servers themselves do: connections in TIME_WAIT of a former run do not count.
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        held.bind((address, port))
        held.listen()  # otherwise another socket could bind the same port
    except OSError:
        held.close()
        raise
    return held


def _outgoing_start() -> int:
    try:
        return int(_RANGE_FILE.read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return _FALLBACK
