"""A hostile worker: a proxy in front of a real API server that alters every answer.

Requests are carried out by the real API server. Each object in an answer is altered (`_OBJECTS`),
and a share of the answers is broken as a whole (`_answer`). Some watches are attacks by themselves
(`_WATCHES`): one line without an end, new objects without an end, silence.

    async with hostile_worker(worker, forgery, directory=…) as hostile:
        await binding_env.bind(kubeconfig=hostile.kubeconfig)
        …
        hostile.begin()

The proxy listens on the loopback with a certificate of its own. Its choices are taken from a seed.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import random
import ssl
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import aiohttp
import yaml
from aiohttp import web

from kubeocean.local.cluster import Cluster
from kubeocean.runtime.access import ssl_context
from kubeocean.runtime.kubeconfig import load_kubeconfig
from kubeocean.runtime.objects import Json
from support.certificates import encoded, issue, kubeconfig

__all__ = ["ESCAPES", "Forgery", "HostileWorker", "hostile_worker"]

ESCAPES: Final = "\x1b]0;owned\x07\x1b[2J\x9b31m\r\u202e"  # title, clear, colour, bidirectional
_HUGE: Final = 3 << 20  # bytes: more than an API server stores in one object
_FLOOD: Final = 600 << 20  # bytes that one attack sends at most
_CHUNK: Final = 1 << 16
_BROKEN: Final = 0.15  # share of answers that are broken as a whole
_ATTACKS: Final = 0.5  # share of watches that are attacks
_NAME: Final = "worker.example"
_ODD: Final = (None, 7, "text", [], {}, [None], True, {"a": {"b": []}})


@dataclass(frozen=True)
class Forgery:
    """Values that the hostile worker writes into its objects, to reach objects of others."""

    labels: Json
    annotations: Json
    uids: tuple[str, ...]
    addresses: tuple[str, ...]
    node_names: tuple[str, ...]


@dataclass
class HostileWorker:
    """The running proxy; `counts` has the number of alterations by name."""

    forgery: Forgery
    chance: random.Random
    server: str
    session: aiohttp.ClientSession
    kubeconfig: bytes = b""
    alters: bool = False
    counts: Counter[str] = field(default_factory=Counter)
    _watches: int = 0
    _numbers: Iterator[int] = field(default_factory=itertools.count)
    _open: dict[int, web.Request] = field(default_factory=dict)  # watches, by their number

    def begin(self) -> None:
        """Alter every answer from now on; watches that are open are cut."""
        self.alters = True
        for request in self._open.values():
            _cut(request)

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """Let the API server answer a request, and alter the answer."""
        if "kube-system" in request.path:
            # not altered, because another identity would end all other attacks
            self.counts["identity"] += 1
        kept = {"Accept", "Content-Type", "User-Agent"}
        headers = {key: value for key, value in request.headers.items() if key in kept}
        url = f"{self.server}{request.raw_path}"
        body = await request.read()
        async with self.session.request(
            request.method, url, data=body or None, headers=headers
        ) as answer:
            if request.query.get("watch") == "true" and answer.status == 200:
                return await self._watch(request, answer)
            content = await answer.read()
            type_ = answer.headers.get("Content-Type", "application/json")
            status = answer.status
        if not self.alters or "kube-system" in request.path:
            return web.Response(status=status, body=content, headers={"Content-Type": type_})
        return await self._answer(request, status, content, type_)

    # Whole answers

    async def _answer(
        self, request: web.Request, status: int, content: bytes, type_: str
    ) -> web.StreamResponse:
        content = self._altered(content)
        broken = self.chance.choice(_ANSWERS) if self.chance.random() < _BROKEN else None
        if broken is None:
            return web.Response(status=status, body=content, headers={"Content-Type": type_})
        self.counts[f"answer: {broken}"] += 1
        match broken:
            case "truncated JSON":
                content = content[: len(content) // 2]
            case "malformed JSON":
                content = content.replace(b":", b";", 3)
            case "invalid UTF-8":
                content = content.replace(b"a", b"\xff\xfe", 2)
            case "deep nesting":
                content = b"[" * 200_000
            case "another kind":
                content = json.dumps({"kind": "List", "items": ["x", None, 1]}).encode()
            case "odd fields":
                odd = self.chance.choice(_ODD)
                content = json.dumps({"metadata": odd, "items": odd, "spec": odd}).encode()
            case "web page":
                content, type_ = f"<html>{ESCAPES}</html>".encode(), "text/html"
            case "binary content type":
                content, type_ = b"k8s\x00" + content, "application/vnd.kubernetes.protobuf"
            case "status code":
                status = self.chance.choice((401, 403, 404, 409, 410, 418, 422, 429, 500, 503, 599))
                content = json.dumps({"kind": "Status", "message": ESCAPES * 99}).encode()
            case "endless pages":
                content = _with_token(content)
            case "redirect":
                where = {"Location": "https://127.0.0.1:1/", "Retry-After": "86400"}
                return web.Response(status=302, headers=where)
            case "cut short":
                return await self._cut_short(request, content)
            case "endless answer":
                return await self._endless(request, b" " * _CHUNK)
        return web.Response(status=status, body=content, headers={"Content-Type": type_})

    async def _cut_short(self, request: web.Request, content: bytes) -> web.StreamResponse:
        """Announce more bytes than are sent."""
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        response.content_length = len(content) + 100
        await response.prepare(request)
        await response.write(content)
        _cut(request)
        return response

    async def _endless(self, request: web.Request, chunk: bytes) -> web.StreamResponse:
        """Send the same bytes until the client closes the connection, or for very long."""
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        await response.prepare(request)
        with suppress(OSError):  # the client has closed the connection
            await self._repeat(response, lambda n: chunk)
        return response

    async def _repeat(self, response: web.StreamResponse, chunk: Callable[[int], bytes]) -> None:
        sent = number = 0
        while self.alters and sent < _FLOOD:
            data = chunk(number)
            await response.write(data)
            sent, number = sent + len(data), number + 1
            await asyncio.sleep(0)
        self.counts["floods that the client did not end"] += sent >= _FLOOD

    # Watches

    async def _watch(
        self, request: web.Request, answer: aiohttp.ClientResponse
    ) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        await response.prepare(request)
        attack = None
        if self.alters and self.chance.random() < _ATTACKS:
            # In turn, so that a short run has each of them.
            attack = _WATCHES[self._watches % len(_WATCHES)]
            self._watches += 1
            self.counts[f"watch: {attack}"] += 1
        number = next(self._numbers)
        self._open[number] = request
        try:
            await self._relay(request, response, answer, attack)
        except (OSError, aiohttp.ClientError):
            pass  # the client has closed the connection
        finally:
            del self._open[number]
        return response

    async def _relay(
        self,
        request: web.Request,
        response: web.StreamResponse,
        answer: aiohttp.ClientResponse,
        attack: str | None,
    ) -> None:
        sample: Json = {}
        tail = b""
        async for chunk in answer.content.iter_any():
            *lines, tail = (tail + chunk).split(b"\n")
            for line in lines:
                sample = sample or json.loads(line)
                await response.write(self._altered_line(line))
            if sample and attack is not None:
                await self._attack(response, attack, sample)
                _cut(request)
                return

    async def _attack(self, response: web.StreamResponse, attack: str, sample: Json) -> None:
        match attack:
            case "line without an end":
                await response.write(b'{"type":"ADDED","object":{"metadata":{"name":"')
                await self._repeat(response, lambda n: b"x" * _CHUNK)
            case "objects without an end":
                await self._repeat(response, lambda n: self._invented(sample, n))
            case "garbage":
                await response.write(
                    b'{"type":"ADDED","object":[]}\n{{{\n' + b"[" * 100_000 + b"\n"
                )
            case "version in the far future":
                await response.write(
                    _event("BOOKMARK", {"metadata": {"resourceVersion": "9" * 18}})
                )
            case "error":
                error = {"kind": "Status", "code": 410, "message": ESCAPES * 999}
                await response.write(_event("ERROR", error))
            case "everything deleted":
                await response.write(_event("DELETED", sample["object"]))
            case "huge objects":
                for number in range(40):
                    await response.write(self._invented(sample, number, size=_HUGE))
            case "cut":
                await response.write(b'{"type":"MODIFIED","obj')

    def _invented(self, sample: Json, number: int, *, size: int = 20_000) -> bytes:
        """Return an event with a new object that resembles `sample`, with the labels of it."""
        obj = json.loads(json.dumps(sample["object"]))
        meta = obj.setdefault("metadata", {})
        kept = {"kubeocean.io/managed-by": "kubeocean"}  # selected by no node selector
        meta["labels"] = kept | {"number": str(number)}
        meta["name"] = f"invented-{number}-{self.chance.randrange(1 << 60):x}"
        meta["uid"] = f"{self.chance.randrange(1 << 60):x}"
        version = int(meta.get("resourceVersion") or 0)
        meta["resourceVersion"] = str(version + number + 1)
        meta["annotations"] = {"large": "x" * size}
        return _event("ADDED", obj)

    def _altered_line(self, line: bytes) -> bytes:
        if not self.alters or not line:
            return line + b"\n"
        event = json.loads(line)
        if event["type"] in ("ADDED", "MODIFIED"):
            self._alter(event["object"])
        return json.dumps(event).encode() + b"\n"

    # Objects

    def _altered(self, content: bytes) -> bytes:
        try:
            body = json.loads(content)
        except ValueError:
            return content
        if isinstance(body, dict):
            items = body.get("items")
            for each in items if isinstance(items, list) else [body]:
                self._alter(each)
        return json.dumps(body).encode()

    def _alter(self, obj: Json) -> None:
        """Alter an object in one or two ways."""
        for _ in range(self.chance.randint(1, 2)):
            name = self.chance.choice(list(_OBJECTS))
            self.counts[f"object: {name}"] += 1
            with suppress(LookupError, TypeError, AttributeError):  # there is no such field
                _OBJECTS[name](obj, self)


def _cut(request: web.Request) -> None:
    """Close the connection of a request without the end of its answer."""
    if request.transport is not None:
        request.transport.close()


def _event(type_: str, obj: object) -> bytes:
    return json.dumps({"type": type_, "object": obj}).encode() + b"\n"


def _with_token(content: bytes) -> bytes:
    body = json.loads(content)
    if isinstance(body, dict) and "items" in body:
        body.setdefault("metadata", {})["continue"] = "again"
    return json.dumps(body).encode()


def _labels(obj: Json, worker: HostileWorker) -> None:
    labels = obj["metadata"].get("labels") or {}
    obj["metadata"]["labels"] = labels | worker.forgery.labels


def _annotations(obj: Json, worker: HostileWorker) -> None:
    annotations = obj["metadata"].get("annotations") or {}
    obj["metadata"]["annotations"] = annotations | worker.forgery.annotations


def _uid(obj: Json, worker: HostileWorker) -> None:
    obj["metadata"]["uid"] = worker.chance.choice((*worker.forgery.uids, "", ESCAPES))


def _owner(obj: Json, worker: HostileWorker) -> None:
    uid = worker.chance.choice(worker.forgery.uids)
    owner = {"apiVersion": "v1", "kind": "Pod", "name": "x", "uid": uid, "controller": True}
    obj["metadata"]["ownerReferences"] = [owner]
    obj["metadata"]["finalizers"] = ["kubeocean.io/vnode", "example.com/forged"]


def _name(obj: Json, worker: HostileWorker) -> None:
    names = ("../../secrets/x", "a?b#c", "A" * 300, ESCAPES, "", *worker.forgery.node_names)
    obj["metadata"]["name"] = worker.chance.choice(names)


def _address(obj: Json, worker: HostileWorker) -> None:
    address = worker.chance.choice((*worker.forgery.addresses, ESCAPES, "x" * 1000))
    obj["status"] |= {"podIP": address, "podIPs": [{"ip": address}], "hostIP": address}
    obj["status"]["addresses"] = [{"type": "InternalIP", "address": address}]


def _texts(obj: Json, worker: HostileWorker) -> None:
    text = ESCAPES * worker.chance.choice((1, 50_000))
    condition = {"type": "Ready", "status": "False", "reason": text, "message": text}
    obj["status"] |= {"message": text, "reason": text, "conditions": [condition], "phase": text}


def _amounts(obj: Json, worker: HostileWorker) -> None:
    amounts = {"cpu": "9" * 900, "memory": "-1", "pods": "1e999999999", ESCAPES: "1", "gpu": ""}
    obj["status"] |= {"capacity": amounts, "allocatable": amounts}


def _huge(obj: Json, worker: HostileWorker) -> None:
    obj["metadata"].setdefault("annotations", {})["example.com/huge"] = "x" * _HUGE


def _many(obj: Json, worker: HostileWorker) -> None:
    obj["metadata"]["labels"] |= {f"example.com/l{n}": "v" for n in range(5_000)}


def _node(obj: Json, worker: HostileWorker) -> None:
    obj["spec"]["nodeName"] = worker.chance.choice(worker.forgery.node_names)
    obj["spec"]["taints"] = [{"key": ESCAPES, "effect": "NoExecute"}] * 200


def _kind(obj: Json, worker: HostileWorker) -> None:
    obj["kind"], obj["apiVersion"] = "Secret", "v1"


def _odd(obj: Json, worker: HostileWorker) -> None:
    holder: Any = worker.chance.choice([obj, obj["metadata"], obj.get("spec"), obj.get("status")])
    holder[worker.chance.choice(list(holder))] = worker.chance.choice(_ODD)


def _nothing(obj: Json, worker: HostileWorker) -> None:
    """Leave an object as it is, so that some objects proceed to the next attack."""


_OBJECTS: Final[dict[str, Callable[[Json, HostileWorker], None]]] = {
    "labels": _labels,
    "annotations": _annotations,
    "UID": _uid,
    "owner and finalizers": _owner,
    "name": _name,
    "addresses": _address,
    "escape sequences": _texts,
    "amounts": _amounts,
    "huge": _huge,
    "many labels": _many,
    "node": _node,
    "kind": _kind,
    "odd type": _odd,
    "as it is": _nothing,
}
_ANSWERS: Final = (
    "truncated JSON",
    "malformed JSON",
    "invalid UTF-8",
    "deep nesting",
    "another kind",
    "odd fields",
    "web page",
    "binary content type",
    "status code",
    "endless pages",
    "redirect",
    "cut short",
    "endless answer",
)
_WATCHES: Final = (
    "line without an end",
    "objects without an end",
    "garbage",
    "version in the far future",
    "error",
    "everything deleted",
    "huge objects",
    "cut",
)


@asynccontextmanager
async def hostile_worker(
    worker: Cluster, forgery: Forgery, *, directory: Path, seed: int = 0
) -> AsyncIterator[HostileWorker]:
    """Run the proxy in front of a worker cluster until the block ends."""
    authority = issue("hostile", authority=True)
    identity = issue(_NAME, issuer=authority, san=_NAME)
    for suffix, content in (("crt", identity.certificate), ("key", identity.key)):
        (directory / f"hostile.{suffix}").write_bytes(content)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(directory / "hostile.crt", directory / "hostile.key")
    access = load_kubeconfig(worker.kubeconfig)
    connector = aiohttp.TCPConnector(ssl=ssl_context(access) or True, limit=0)
    timeout = aiohttp.ClientTimeout(total=None)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:
        hostile = HostileWorker(
            forgery,
            random.Random(seed),
            access.server.rstrip("/"),
            session,
        )
        application = web.Application(client_max_size=1 << 30)
        application.router.add_route("*", "/{path:.*}", hostile.handle)
        runner = web.AppRunner(application, access_log=None, shutdown_timeout=0.1)
        await runner.setup()
        try:
            site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls)
            await site.start()
            port = runner.addresses[0][1]
            cluster = {
                "server": f"https://127.0.0.1:{port}",
                "tls-server-name": _NAME,
                "certificate-authority-data": encoded(authority.certificate),
            }
            document = kubeconfig(cluster=cluster, user={"token": "none"})
            hostile.kubeconfig = yaml.safe_dump(document).encode()
            yield hostile
        finally:
            hostile.alters = False
            await runner.cleanup()
