"""TCP connections to API servers: every address of a host is tried, a vanished peer is noticed.

A peer that disappears without closing the connection (a NAT entry that expired, a machine without
power) sends no more packets. TCP alone waits for hours on an idle connection. Keep-alive probes end
such a connection after 75 seconds, as in the clients of Kubernetes.

Keep-alive does not apply while sent data is unacknowledged. For requests, whose data is small,
`TCP_USER_TIMEOUT` limits that wait to the same time. Linux applies that limit also to a peer that
answers probes but does not read, such as a container that is slow to read its standard input, so
tunnels do not set the limit: a tunnel waits for as long as the kernel retransmits, about 15
minutes.
"""

from __future__ import annotations

import asyncio
import socket
from dataclasses import dataclass
from typing import Final, TypeAlias

import aiohappyeyeballs

__all__ = ["KeepAlive", "connect", "request_socket", "tunnel_socket"]

AddressInfo: TypeAlias = tuple[int, int, int, str, tuple[str | int, ...]]  # of getaddrinfo

_NEXT_ADDRESS_S: Final = 0.25  # RFC 8305: delay before the next address is tried in parallel


@dataclass(frozen=True, slots=True)
class KeepAlive:
    """Times of keep-alive probes, in seconds."""

    idle_s: int = 30
    interval_s: int = 15
    probes: int = 3

    @property
    def total_s(self) -> int:
        """Return the seconds after which a vanished peer is noticed."""
        return self.idle_s + self.interval_s * self.probes


KEEP_ALIVE = KeepAlive()


def request_socket(address: AddressInfo) -> socket.socket:
    """Return a socket for HTTP requests; a factory for aiohttp."""
    made = tunnel_socket(address)
    if hasattr(socket, "TCP_USER_TIMEOUT"):  # Linux
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, KEEP_ALIVE.total_s * 1000)
    return made


def tunnel_socket(address: AddressInfo) -> socket.socket:
    """Return a socket for a stream of bytes in both directions."""
    family, kind, protocol, _, _ = address
    made = socket.socket(family, kind, protocol)
    made.setblocking(False)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if hasattr(socket, "TCP_KEEPIDLE"):  # macOS has another name
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, KEEP_ALIVE.idle_s)
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, KEEP_ALIVE.interval_s)
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, KEEP_ALIVE.probes)
    return made


async def connect(host: str, port: int) -> socket.socket:
    """Connect to the address of `host` that accepts first; addresses are tried in parallel.

    :raises OSError: the name cannot be resolved, or no address accepts.
    """
    loop = asyncio.get_running_loop()
    addresses = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return await aiohappyeyeballs.start_connection(
        addresses,
        happy_eyeballs_delay=_NEXT_ADDRESS_S,
        interleave=1,
        socket_factory=tunnel_socket,
    )
