"""A running `KubeletServer` with certificates of its own, and clients that send it raw bytes."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from kubeocean.local.pki import LocalAuthority, Subject
from kubeocean.proxier.server import ExchangeHandler, KubeletServer
from kubeocean.proxier.server_tls import ServerTls
from kubeocean.runtime.server_tls import ServerCertificate

__all__ = ["RunningServer", "pair_of"]


def pair_of(authority: LocalAuthority, *sans: str) -> ServerCertificate:
    """Return a serving certificate of this authority."""
    issued = authority.issue(Subject("proxier", (), sans or ("127.0.0.1",), server=True))
    return ServerCertificate.load(issued.certificate, issued.private_key, "test")


@dataclass
class RunningServer:
    """A server that listens on a port of the loopback."""

    server: KubeletServer
    tls: ServerTls
    authority: LocalAuthority
    directory: Path
    port: int = 0
    opened: list[asyncio.StreamWriter] = field(default_factory=list)

    @classmethod
    @asynccontextmanager
    async def running(
        cls, handler: ExchangeHandler, directory: Path
    ) -> AsyncIterator[RunningServer]:
        authority, tls = LocalAuthority.create("proxier"), ServerTls()
        tls.use_certificate(pair_of(authority))
        tls.trust_clients(authority.certificate)
        server = KubeletServer(handler, tls, host="127.0.0.1")
        proxier = cls(server, tls, authority, directory)
        async with server:
            proxier.port = await server.open_port(0)
            try:
                yield proxier
            finally:
                for writer in proxier.opened:
                    writer.transport.abort()
                await server.drain(0.0)

    def context(
        self, *, certified: bool = True, by: LocalAuthority | None = None
    ) -> ssl.SSLContext:
        """TLS of a client with or without a certificate."""
        context = ssl.create_default_context()
        context.check_hostname = False
        context.load_verify_locations(cadata=self.authority.certificate.decode())
        if certified:
            subject = Subject("caller", ("callers",), client=True)
            (by or self.authority).issue(subject).save(self.directory, "caller")
            context.load_cert_chain(self.directory / "caller.crt", self.directory / "caller.key")
        return context

    async def connect(
        self, context: ssl.SSLContext | None = None
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        tls = context or self.context(certified=False)
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port, ssl=tls)
        self.opened.append(writer)
        return reader, writer

    async def send(self, data: bytes, context: ssl.SSLContext | None = None) -> bytes:
        """Send bytes and return all that is answered until the connection ends."""
        reader, writer = await self.connect(context)
        writer.write(data)
        async with asyncio.timeout(10):
            try:
                return await reader.read()
            except ConnectionError:
                return b""
