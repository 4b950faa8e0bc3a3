"""Server: a web application on one address, plain or with TLS.

`start` returns when the server listens, or raises a ConfigError that names the address and its
flag. `stop` gives running requests a moment to finish. An empty host is every interface, IPv4 and
IPv6 through one socket where the machine has both.
"""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import ssl
from dataclasses import replace
from typing import Final

from aiohttp import web

from kubeocean.errors import ConfigError
from kubeocean.runtime.components import Lifespan
from kubeocean.runtime.flags import BindAddress

__all__ = ["Server"]

_GRACE_S = 1.0  # answers are small; a client that has none by then will retry
_HINTS: Final = {
    errno.EADDRINUSE: "; stop the program that listens there, or choose another address",
    errno.EACCES: "; ports below 1024 need privileges",
}


class Server(Lifespan):
    """Web server of an application: `async with Server(app, address) as server`.

    `server.address` has the real port. `tls` is the TLS context of an HTTPS server.
    """

    def __init__(
        self, app: web.Application, address: BindAddress, *, tls: ssl.SSLContext | None = None
    ) -> None:
        self.address = address
        self._tls = tls
        self._runner = web.AppRunner(
            app, handle_signals=False, access_log=None, shutdown_timeout=_GRACE_S
        )

    async def start(self) -> None:
        """Listen on the address; raise ConfigError if that fails."""
        listener = await _listen(self.address)
        self.address = replace(self.address, port=listener.getsockname()[1])
        await self._runner.setup()
        await web.SockSite(self._runner, listener, ssl_context=self._tls).start()

    async def stop(self) -> None:
        """Close the socket and every connection."""
        await self._runner.cleanup()

    async def run(self) -> None:
        """Serve until cancelled."""
        async with self:
            await asyncio.get_running_loop().create_future()


async def _listen(address: BindAddress) -> socket.socket:
    try:
        return await _bind(address)
    except (socket.gaierror, UnicodeError) as error:
        why = f"{address.host!r} is not a host: {error}"
        raise ConfigError(f"cannot listen on {address}: {why}", source=address.flag) from error
    except OSError as error:
        number = error.errno or 0
        why = os.strerror(number) + _HINTS.get(number, "")
        raise ConfigError(f"cannot listen on {address}: {why}", source=address.flag) from error


async def _bind(address: BindAddress) -> socket.socket:
    if address.host:
        addresses = await asyncio.get_running_loop().getaddrinfo(
            address.host, address.port, type=socket.SOCK_STREAM
        )
        family, _, _, _, where = addresses[0]
        return socket.create_server(where, family=family)
    if socket.has_dualstack_ipv6():
        return socket.create_server(("", address.port), family=socket.AF_INET6, dualstack_ipv6=True)
    return socket.create_server(("", address.port))
