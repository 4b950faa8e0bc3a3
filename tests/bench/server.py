"""A TLS server with canned answers, in a process of its own.

The server stands for the socket of an API server, because only the client is measured, and a real
API server on the other core could not send fast enough. `Server` starts the process, which ends
when its standard input ends.

- `GET /api/v1/pods?watch=true…`: as many Pod events as asked for, one chunk each, then the end.
- `GET` and `PATCH` of a Lease: a Lease.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import ssl
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Self

from bench.pods import event
from kubeocean.local.pki import LocalAuthority, Subject
from kubeocean.runtime.objects import encode

__all__ = ["Server"]

LEASE = {
    "apiVersion": "coordination.k8s.io/v1",
    "kind": "Lease",
    "metadata": {
        "name": "node-1",
        "namespace": "kube-node-lease",
        "uid": "3f0c2a52-1111-4222-8333-944455556666",
        "resourceVersion": "123456",
        "creationTimestamp": "2026-11-15T00:00:00Z",
        "labels": {"app": "lease"},
        "managedFields": [
            {
                "manager": "kubelet",
                "operation": "Update",
                "apiVersion": "coordination.k8s.io/v1",
                "time": "2026-11-15T00:00:00Z",
                "fieldsType": "FieldsV1",
                "fieldsV1": {"f:spec": {"f:holderIdentity": {}, "f:renewTime": {}}},
            }
        ],
    },
    "spec": {
        "holderIdentity": "node-1",
        "leaseDurationSeconds": 40,
        "renewTime": "2026-11-15T00:00:00.000000Z",
    },
}
DISTINCT = 2_000  # events are cut from this many bodies; more would only warm other caches
_BREATH = 100
_EVENTS = re.compile(rb"[?&]labelSelector=events%3D(\d+)-(\d+)")


class Server:
    """The server process; `url` and `ca` are how to reach it."""

    def __init__(self, directory: Path, *, core: int | None) -> None:
        self._directory = directory
        self._core = core
        authority = LocalAuthority.create("bench")
        identity = authority.issue(Subject("bench", server=True, sans=("127.0.0.1",)))
        (directory / "server.crt").write_bytes(identity.certificate)
        (directory / "server.key").write_bytes(identity.private_key)
        self.ca = authority.certificate

    def __enter__(self) -> Self:
        arguments = [sys.executable, "-m", "bench.server", str(self._directory)]
        environment = os.environ | {"PYTHONPATH": str(Path(__file__).parent.parent)}
        self._process = subprocess.Popen(
            arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment
        )
        assert self._process.stdout is not None
        port = int(self._process.stdout.readline())
        if self._core is not None:
            os.sched_setaffinity(self._process.pid, {self._core})
        self.url = f"https://127.0.0.1:{port}"
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._process.communicate(b"")


async def _answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    lease = encode(LEASE)
    unary = (
        b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
        b"Audit-Id: 0f1e2d3c-0000-4000-8000-000000000000\r\nCache-Control: no-cache, private\r\n"
        b"Date: Sun, 15 Nov 2026 00:00:00 GMT\r\nContent-Length: " + str(len(lease)).encode()
    ) + b"\r\n\r\n"
    with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
        while True:
            head = await reader.readuntil(b"\r\n\r\n")
            length = re.search(rb"(?i)content-length: (\d+)", head)
            if length:
                await reader.readexactly(int(length[1]))
            line = head.split(b"\r\n", 1)[0]
            if b"watch=" in line:
                await _stream(writer, line)
            else:
                writer.write(unary + lease)
    writer.close()


async def _stream(writer: asyncio.StreamWriter, line: bytes) -> None:
    """Send initial events as a streaming list if requested, then changes of the same pods."""
    requested = _EVENTS.search(line)
    assert requested, line
    objects, events = int(requested[1]), int(requested[2])
    writer.write(
        b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
    )
    for number in range(objects):
        await _chunk(writer, event("ADDED", number, number + 1))
    if b"sendInitialEvents=true" in line:
        end = {
            "type": "BOOKMARK",
            "object": {
                "kind": "Pod",
                "apiVersion": "v1",
                "metadata": {
                    "resourceVersion": str(objects + 1),
                    "annotations": {"k8s.io/initial-events-end": "true"},
                },
                "spec": {"containers": None},
                "status": {},
            },
        }
        await _chunk(writer, encode(end) + b"\n")
    bodies = [event("MODIFIED", number, 0) for number in range(min(DISTINCT, events))]
    for n in range(events):
        if n % _BREATH == 0:
            # a socket that accepts everything does not show a closed connection
            await asyncio.sleep(0)
        version = b'"resourceVersion":"%d"' % (objects + 2 + n)
        await _chunk(writer, bodies[n % DISTINCT].replace(b'"resourceVersion":"0"', version, 1))
    writer.write(b"0\r\n\r\n")
    await writer.drain()


async def _chunk(writer: asyncio.StreamWriter, data: bytes) -> None:
    if writer.is_closing():
        raise ConnectionResetError
    writer.write(b"%x\r\n%s\r\n" % (len(data), data))
    await writer.drain()


async def _serve(directory: Path) -> None:
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(directory / "server.crt", directory / "server.key")
    server = await asyncio.start_server(_answer, "127.0.0.1", 0, ssl=tls, limit=1 << 20)
    print(server.sockets[0].getsockname()[1], flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.buffer.read)
    os._exit(0)  # open streams that no client reads would delay the exit


if __name__ == "__main__":
    asyncio.run(_serve(Path(sys.argv[1])))
