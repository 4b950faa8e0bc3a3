"""Listening: sockets of a port, and connections on which TLS has been agreed upon.

The sockets are ours, so that it is known who comes before anything is agreed: how many try at once
is limited, and who does not succeed can be told of.
"""

from __future__ import annotations

import asyncio
import errno
import socket
import ssl
from typing import Final

from kubeocean.errors import ConfigError

__all__ = ["accept", "agree", "listen"]

HANDSHAKE_S: Final = 10.0

_BACKLOG: Final = 512
_BUFFER: Final = 64 * 1024  # of each connection: larger than a head may be, for what is carried
_QUIET_S: Final = 60  # after which a caller is asked whether it is still there
_ABSENT: Final = (errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL)  # a family that this machine has not
_FULL: Final = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_PASSING: Final = (  # of a connection that was never made, as accept(2) tells of it
    errno.ENETDOWN,
    errno.EPROTO,
    errno.ENOPROTOOPT,
    errno.EHOSTDOWN,
    errno.ENONET,
    errno.EHOSTUNREACH,
    errno.EOPNOTSUPP,
    errno.ENETUNREACH,
    errno.EPERM,
)
_PAUSE_S: Final = 0.5  # while there is no room for another connection


async def listen(host: str | None, port: int) -> list[socket.socket]:
    """Sockets of all addresses of a host, or of the machine, with one port.

    :raises ConfigError: it cannot be had.
    """
    loop = asyncio.get_running_loop()
    made: list[socket.socket] = []
    try:
        found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        absent: OSError | None = None
        for family, *_, address in dict.fromkeys(found):
            try:
                made.append(_bound(family, (address[0], port, *address[2:])))
            except OSError as error:
                if error.errno not in _ABSENT:
                    raise
                absent = error
            else:
                port = int(made[0].getsockname()[1])
        if absent is not None and not made:
            raise absent
    except OSError as error:
        for each in made:
            each.close()
        raise ConfigError(f"cannot listen on port {port}: {error.strerror}") from error
    return made


def _bound(family: socket.AddressFamily, address: tuple[object, ...]) -> socket.socket:
    made = socket.socket(family, socket.SOCK_STREAM)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        made.setblocking(False)
        made.bind(address)
        made.listen(_BACKLOG)
    except BaseException:  # whatever it was, the socket is ours alone
        made.close()
        raise
    return made


async def accept(listening: socket.socket) -> socket.socket:
    """The next connection; while there is no room for one, they wait."""
    loop = asyncio.get_running_loop()
    while True:
        try:
            connection, _ = await loop.sock_accept(listening)
        except ConnectionError:
            continue  # it left before it was let in
        except OSError as error:
            if error.errno not in (*_FULL, *_PASSING):
                raise
            await asyncio.sleep(_PAUSE_S if error.errno in _FULL else 0)
            continue
        if _kept_alive(connection):
            return connection


def _kept_alive(connection: socket.socket) -> bool:
    """Whether we shall be told when the other side is gone; if not, it is gone already."""
    try:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _QUIET_S)
    except OSError:
        connection.close()
        return False
    return True


async def agree(
    connection: socket.socket, context: ssl.SSLContext
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Speak TLS on a connection from now on.

    :raises OSError: it was not agreed upon, or not in time.
    """
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=_BUFFER, loop=loop)
    protocol = asyncio.StreamReaderProtocol(reader, loop=loop)
    transport, _ = await loop.connect_accepted_socket(
        lambda: protocol, connection, ssl=context, ssl_handshake_timeout=HANDSHAKE_S
    )
    # By itself TLS would hold half a megabyte for somebody who does not read.
    transport.set_write_buffer_limits(_BUFFER)
    return reader, asyncio.StreamWriter(transport, protocol, reader, loop)
