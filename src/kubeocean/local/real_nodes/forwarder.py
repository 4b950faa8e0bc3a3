"""Forwarder: how a real node, in its own network, reaches servers on this machine's loopback.

The forwarder listens in the node's network namespace and connects in the machine's. Two addresses
exist only inside the node:

- the cluster's `kubernetes` service address, which leads to the API server, for pods and
  kubelet;
- the machine itself: connections to any of its ports arrive at one listener (by iptables rules of
  the node) and go to the same port of the loopback, if a file names that port. The file is read for
  each connection, so ports can be opened at any time.

A script that uses the standard library only; see `main` for its arguments.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import socket
import struct
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final, TypeAlias

__all__ = ["main", "serve"]

Address: TypeAlias = tuple[str, int]

_SO_ORIGINAL_DST: Final = 80  # linux/netfilter_ipv4.h
_CLONE_NEWNET: Final = 0x40000000
_CHUNK: Final = 1 << 16
_BACKLOG: Final = 128


def main(namespace: str, service: str, server: str, machine: str, ports: str) -> None:
    """Forward connections of a node until killed.

    `namespace` is the file of the node's network namespace, `service` and `machine` the addresses
    to listen on, `server` the address of the API server, `ports` the file that names open ports.
    """
    listeners = _listen_inside(namespace, [_address(service), _address(machine)])
    asyncio.run(serve(*listeners, server=_address(server), ports=Path(ports)))


async def serve(
    service: socket.socket, machine: socket.socket, *, server: Address, ports: Path
) -> None:
    """Forward connections to `service` to `server`, and those to `machine` to loopback `ports`."""

    async def to_server(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await _forward(reader, writer, lambda _: server)

    async def to_machine(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await _forward(reader, writer, lambda accepted: _meant(accepted, ports))

    async with (
        await asyncio.start_server(to_server, sock=service) as first,
        await asyncio.start_server(to_machine, sock=machine) as second,
        asyncio.TaskGroup() as group,
    ):
        group.create_task(first.serve_forever())
        group.create_task(second.serve_forever())


async def _forward(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    choose: Callable[[socket.socket], Address | None],
) -> None:
    try:
        target = choose(writer.get_extra_info("socket"))
        if target is None:
            return
        near, far = await asyncio.open_connection(*target)
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(_pump(reader, far))
                group.create_task(_pump(near, writer))
        finally:
            far.close()
    except* OSError:
        pass  # one side has closed; the other connection is closed next
    finally:
        writer.close()


async def _pump(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    """Copy from `source` to `target` until the end of data, and then send the end of data."""
    while data := await source.read(_CHUNK):
        target.write(data)
        await target.drain()
    target.write_eof()


def _meant(accepted: socket.socket, ports: Path) -> Address | None:
    """Return the loopback address for a redirected connection; None if its port is not open."""
    packed = accepted.getsockopt(socket.SOL_IP, _SO_ORIGINAL_DST, 16)
    (port,) = struct.unpack_from("!2xH", packed)
    try:
        is_open = str(port) in ports.read_text().split()
    except FileNotFoundError:
        is_open = False
    return ("127.0.0.1", port) if is_open else None


def _listen_inside(namespace: str, addresses: list[Address]) -> list[socket.socket]:
    """Listen on `addresses` in a network namespace, to which the sockets then belong."""
    ours = os.open("/proc/self/ns/net", os.O_RDONLY)
    theirs = os.open(namespace, os.O_RDONLY)
    try:
        _enter(theirs)
        listeners = [socket.create_server(at, backlog=_BACKLOG) for at in addresses]
        _enter(ours)
    finally:
        os.close(ours)
        os.close(theirs)
    return listeners


def _enter(namespace: int) -> None:
    if ctypes.CDLL(None, use_errno=True).setns(namespace, _CLONE_NEWNET) != 0:
        error = ctypes.get_errno()
        raise OSError(error, f"could not enter a network namespace: {os.strerror(error)}")


def _address(text: str) -> Address:
    host, _, port = text.rpartition(":")
    return host.strip("[]"), int(port)


if __name__ == "__main__":
    main(*sys.argv[1:])
