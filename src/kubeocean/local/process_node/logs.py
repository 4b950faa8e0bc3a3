"""Pod logs: the answers of a process node to `kubectl logs`.

Only requests of the API server are answered: over TLS, with its own client certificate.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Final

from aiohttp import web

from kubeocean.local.pki import LocalAuthority, Subject
from kubeocean.runtime.objects import Key

__all__ = ["Find", "LogServer", "tail"]

Find = Callable[[Key, str], Path | None]  # returns the log file of a pod's container

_CALLER: Final = "kube-apiserver-kubelet-client"
_LOOK_S: Final = 0.25
_BLOCK: Final = 64 * 1024


class LogServer:
    """HTTPS server of pod logs; `async with LogServer(...)` listens at `address`, sets `port`."""

    def __init__(self, find: Find, authority: LocalAuthority, *, address: str, node: str) -> None:
        self._find = find
        self._authority = authority
        self._address = address
        self._node = node
        app = web.Application()
        app.router.add_get("/containerLogs/{namespace}/{pod}/{container}", self._logs)
        self._runner = web.AppRunner(
            app, handle_signals=False, access_log=None, shutdown_timeout=1.0
        )
        self.port = 0

    async def start(self, files: Path) -> None:
        """Start to listen; the server's certificate and key are stored in `files`."""
        subject = Subject(f"system:node:{self._node}", sans=(self._address,), server=True)
        self._authority.ensure_issued(files, "node", subject)
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        tls.load_cert_chain(files / "node.crt", files / "node.key")
        tls.load_verify_locations(cadata=self._authority.certificate.decode())
        tls.verify_mode = ssl.CERT_REQUIRED
        await self._runner.setup()
        site = web.TCPSite(self._runner, self._address, 0, ssl_context=tls)
        await site.start()
        self.port = self._runner.addresses[0][1]

    async def stop(self) -> None:
        await self._runner.cleanup()

    async def _logs(self, request: web.Request) -> web.StreamResponse:
        transport = request.transport
        shown = transport.get_extra_info("peercert") if transport is not None else None
        names = [value for rdn in (shown or {}).get("subject", ()) for _, value in rdn]
        if _CALLER not in names:
            message = "logs are served only to the API server"
            raise web.HTTPForbidden(text=f"{message}; the client certificate is of another user\n")
        path = request.match_info
        pod, container = Key(path["namespace"], path["pod"]), path["container"]
        log = self._find(pod, container)
        if log is None or not log.exists():
            raise web.HTTPNotFound(text=f"there is no log of container {container} of pod {pod}\n")
        response = web.StreamResponse(headers={"Content-Type": "text/plain"})
        await response.prepare(request)
        lines = request.query.get("tailLines", "")
        with log.open("rb") as file:
            file.seek(tail(log, int(lines)) if lines.isdigit() else 0)
            while True:
                while block := file.read(_BLOCK):
                    await response.write(block)
                if request.query.get("follow") != "true" or not log.exists():
                    return response
                await asyncio.sleep(_LOOK_S)


def tail(path: Path, lines: int) -> int:
    """Return the offset in a log file at which the last `lines` lines begin."""
    size = path.stat().st_size
    if not lines:
        return size
    at, newlines = size, 0
    with path.open("rb") as file:
        while at > 0:
            begin = max(0, at - _BLOCK)
            file.seek(begin)
            block = file.read(at - begin)
            end = len(block) - (1 if at == size else 0)  # the last line ends in a line end
            while (newline := block.rfind(b"\n", 0, max(end, 0))) >= 0:
                newlines += 1
                if newlines == lines:
                    return begin + newline + 1
                end = newline
            at = begin
    return 0
