"""A front with certificates of its own, and somebody who speaks to it as strangers do."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from kubeocean.local.pki import Authority, Subject
from kubeocean.proxier.front import Desk, Front
from kubeocean.proxier.identity import Identity, Pair

__all__ = ["Facade", "pair_of"]


def pair_of(authority: Authority, *sans: str) -> Pair:
    """A certificate to show."""
    made = authority.issue(Subject("front", (), sans or ("127.0.0.1",), server=True))
    return Pair.load(made.certificate, made.private_key, "test")


@dataclass
class Facade:
    """A running front."""

    front: Front
    identity: Identity
    authority: Authority
    directory: Path
    port: int = 0
    opened: list[asyncio.StreamWriter] = field(default_factory=list)

    @classmethod
    @asynccontextmanager
    async def running(cls, desk: Desk, directory: Path) -> AsyncIterator[Facade]:
        authority, identity = Authority.create("facade"), Identity()
        identity.show(pair_of(authority))
        identity.believe(authority.certificate)
        facade = cls(Front(desk, identity, host="127.0.0.1"), identity, authority, directory)
        async with facade.front:
            facade.port = await facade.front.open(0)
            try:
                yield facade
            finally:
                for writer in facade.opened:
                    writer.transport.abort()
                await facade.front.drain(0.0)

    def context(self, *, named: bool = True, by: Authority | None = None) -> ssl.SSLContext:
        """TLS of somebody who has a certificate, or has not."""
        context = ssl.create_default_context()
        context.check_hostname = False
        context.load_verify_locations(cadata=self.authority.certificate.decode())
        if named:
            subject = Subject("caller", ("callers",), client=True)
            (by or self.authority).issue(subject).save(self.directory, "caller")
            context.load_cert_chain(self.directory / "caller.crt", self.directory / "caller.key")
        return context

    async def connect(
        self, context: ssl.SSLContext | None = None
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        tls = context or self.context(named=False)
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port, ssl=tls)
        self.opened.append(writer)
        return reader, writer

    async def say(self, data: bytes, context: ssl.SSLContext | None = None) -> bytes:
        """All that is answered, until the connection ends."""
        reader, writer = await self.connect(context)
        writer.write(data)
        async with asyncio.timeout(10):
            try:
                return await reader.read()
            except ConnectionError:
                return b""
