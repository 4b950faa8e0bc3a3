"""Client for the resources of one cluster, with one method per API verb.

Preconditions are part of the verbs: an update without a resourceVersion is refused, and a delete
names a UID or states explicitly that there is none. An empty name is refused, so a verb on one
object never becomes a verb on a collection. Partial objects cannot be sent back: bodies are
mappings, not the structs that reads return.

Every verb raises the `ApiError` of the server's answer, also if that answer is malformed.
`timeout_s` bounds all attempts together, without the time spent waiting for the QPS limit.

Of the four patch types only `ApplyPatch` is retried when its outcome is unknown.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Final, Generic, Literal, TypeAlias

import msgspec

from kubeocean.errors import (
    ApiError,
    Gone,
    InternalError,
    InvariantError,
    ResponseTooLarge,
    api_error,
    printable,
)
from kubeocean.runtime.answer_budget import TOO_MANY_VALUES, AnswerBudget, has_too_many_values
from kubeocean.runtime.cache_budget import CacheBudget, size_of
from kubeocean.runtime.clock import Clock, RealClock
from kubeocean.runtime.credentials import KubeconfigAccess
from kubeocean.runtime.objects import Json, ObjectT, Resource, decode_list, decode_object, encode
from kubeocean.runtime.retries import RetryPolicy, TokenBucket, repeatable
from kubeocean.runtime.transport import HttpTransport, Request, Stream, Transport
from kubeocean.runtime.tunnel import Tunnel

__all__ = [
    "ApplyPatch",
    "Client",
    "JsonPatch",
    "Listing",
    "MergePatch",
    "Patch",
    "Propagation",
    "StrategicPatch",
    "connect",
]


@dataclass(frozen=True, slots=True)
class MergePatch:
    """RFC 7386 merge patch: named fields are set, null removes a field, lists are replaced."""

    body: Mapping[str, Any]
    content_type: ClassVar[str] = "application/merge-patch+json"


@dataclass(frozen=True, slots=True)
class StrategicPatch:
    """Strategic merge patch of Kubernetes: lists of built-in kinds are merged by their keys."""

    body: Mapping[str, Any]
    content_type: ClassVar[str] = "application/strategic-merge-patch+json"


@dataclass(frozen=True, slots=True)
class JsonPatch:
    """RFC 6902 JSON patch: a list of operations; a `test` operation is a precondition."""

    body: Sequence[Mapping[str, Any]]
    content_type: ClassVar[str] = "application/json-patch+json"


@dataclass(frozen=True, slots=True)
class ApplyPatch:
    """Server-side apply of all fields that this field manager owns; `force` takes over fields that
    other managers own."""

    body: Mapping[str, Any]
    force: bool = False
    content_type: ClassVar[str] = "application/apply-patch+yaml"  # JSON is YAML


Patch: TypeAlias = MergePatch | StrategicPatch | JsonPatch | ApplyPatch


PAGE: Final = 500
# PartialObjectMetadata, or whole objects from a server that does not support it
_METADATA: Final = "application/json;as=PartialObjectMetadata{};g=meta.k8s.io;v=v1,application/json"
TIMEOUT_S: Final = 30.0
_JSON: Final = "application/json"
Propagation: TypeAlias = Literal["Background", "Foreground", "Orphan"]
_UNREADABLE: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
_decode_json = msgspec.json.Decoder(dict[str, Any]).decode


@dataclass(frozen=True, slots=True)
class Listing(Generic[ObjectT]):
    """Objects that matched a list request at resourceVersion `version`, or one page of them.

    A page that `begins` is the first page of a listing: pages before are void.
    """

    items: list[ObjectT]
    version: str
    begins: bool = True


class Client:
    """Client of one cluster over one transport; `cluster` is the cluster's name in logs and
    metrics. `cache_budget` limits the objects in informers and lists of this client together,
    `answer_budget` the bytes of incomplete answers and events."""

    def __init__(
        self,
        transport: Transport,
        *,
        cluster: str = "",
        field_manager: str = "kubeocean",
        clock: Clock | None = None,
        qps: float | None = None,
        burst: int = 10,
        retry: RetryPolicy | None = None,
        timeout_s: float = TIMEOUT_S,
        cache_budget: CacheBudget | None = None,
        answer_budget: AnswerBudget | None = None,
    ) -> None:
        self.transport = transport
        self.cluster = cluster
        self.cache_budget = cache_budget
        self.answer_budget = answer_budget or AnswerBudget()
        self.field_manager = field_manager
        self._clock = clock or RealClock()
        self._limit = TokenBucket(qps, burst, clock=self._clock) if qps is not None else None
        self._retry = retry or RetryPolicy()
        self._timeout_s = timeout_s

    async def close(self) -> None:
        """Close the transport and its connections."""
        await self.transport.close()

    def with_field_manager(self, field_manager: str) -> Client:
        """Return a client that writes as another field manager, over the same connections and
        within the same limits."""
        client = copy.copy(self)
        client.field_manager = field_manager
        return client

    # Reading

    async def get(
        self,
        resource: Resource[ObjectT],
        name: str,
        namespace: str = "",
        *,
        subresource: str = "",
        keep_raw: bool = False,
    ) -> ObjectT:
        """Get one object from the server.

        :raises NotFound: there is no object of this name.
        """
        request = self._request("GET", _path(resource, namespace, name, subresource))
        doing = f"get {resource} {_ref(namespace, name)}"
        return _object(resource, await self._send(request, doing), doing, keep_raw=keep_raw)

    async def list(
        self,
        resource: Resource[ObjectT],
        namespace: str = "",
        *,
        labels: str = "",
        fields: str = "",
        page: int = PAGE,
        keep_raw: bool = False,
    ) -> Listing[ObjectT]:
        """List all objects that match, in pages of one consistent listing.

        :raises ResponseTooLarge: the pages together do not fit into the client's `cache_budget`.
        """
        items: list[ObjectT] = []
        version = ""
        budget = self.cache_budget or CacheBudget(sys.maxsize)
        size = 0  # charged to the budget
        try:
            async for part in self.pages(
                resource, namespace, labels=labels, fields=fields, page=page, keep_raw=keep_raw
            ):
                if part.begins:
                    version = part.version
                    items.clear()
                    budget.take(-size)
                    size = 0
                items += part.items
                more = sum(map(size_of, part.items)) if self.cache_budget is not None else 0
                if not budget.take(more):
                    message = f"the objects of this cluster take more than {budget.limit} bytes"
                    raise ResponseTooLarge(f"could not list {resource}: {message}")
                size += more
        finally:
            budget.take(-size)
        return Listing(items, version)

    async def pages(
        self,
        resource: Resource[ObjectT],
        namespace: str = "",
        *,
        labels: str = "",
        fields: str = "",
        page: int = PAGE,
        keep_raw: bool = False,
        metadata_only: bool = False,
    ) -> AsyncGenerator[Listing[ObjectT], None]:
        """Yield the pages of a list. With `metadata_only` the server sends only metadata.

        If the continue token expires, the whole list is requested again as one page. That page has
        `begins` set: the pages yielded before it are void. A page that is too large for the
        transport is requested again with fewer objects.
        """
        chosen = _selection(labels, fields)
        accept = _METADATA.format("List") if metadata_only else _JSON
        path = resource.path(namespace)
        doing = f"list {resource}"
        token, limit, restarted = "", page, False
        while True:
            query = (*chosen, *_if("limit", str(limit) if limit else ""), *_if("continue", token))
            try:
                request = self._request("GET", path, query=query, accept=accept)
                body = await self._send(request, doing)
            except Gone:
                if not token or restarted:
                    raise
                token, limit, restarted = "", 0, True
                continue
            except ResponseTooLarge:
                if limit == 1:
                    raise
                limit = max(1, limit // 8) if limit else PAGE
                continue
            try:
                meta, items = decode_list(resource.type, body, keep_raw=keep_raw)
            except _UNREADABLE as error:
                raise _unreadable(doing, error) from error
            del body  # not in memory while the next page is read
            yield Listing(items, meta.resource_version, begins=not token)
            token = meta.continue_
            if not token:
                return

    def watch(
        self,
        resource: Resource[ObjectT],
        namespace: str = "",
        *,
        labels: str = "",
        fields: str = "",
        query: Iterable[tuple[str, str]] = (),
        metadata_only: bool = False,
    ) -> AbstractAsyncContextManager[Stream]:
        """Open a watch and return its raw stream, for `runtime.watch`."""
        parameters = (("watch", "true"), *_selection(labels, fields), *query)
        path = resource.path(namespace)
        accept = _METADATA.format("") if metadata_only else _JSON
        return self.transport.stream(
            Request("GET", path, query=parameters, accept=accept, timeout_s=None)
        )

    # Writing

    async def create(
        self,
        resource: Resource[ObjectT],
        body: Mapping[str, Any],
        *,
        namespace: str = "",
        dry_run: bool = False,
        keep_raw: bool = False,
    ) -> ObjectT:
        """Create an object.

        :raises AlreadyExists: an object of this name exists.
        """
        meta = _metadata(body)
        namespace = namespace or meta.get("namespace", "")
        what = meta.get("name") or meta.get("generateName", "")
        path = resource.path(namespace)
        request = self._request("POST", path, body=body, query=self._writer(dry_run))
        doing = f"create {resource} {_ref(namespace, what)}"
        return _object(resource, await self._send(request, doing), doing, keep_raw=keep_raw)

    async def post(
        self,
        resource: Resource[ObjectT],
        name: str,
        subresource: str,
        body: Mapping[str, Any],
        namespace: str = "",
    ) -> Json:
        """Create a subresource of an object: an eviction, a token, a binding."""
        path = _path(resource, namespace, name, subresource)
        request = self._request("POST", path, body=body, query=self._writer())
        doing = f"post {_what(resource, subresource)} of {_ref(namespace, name)}"
        return _json(await self._send(request, doing), doing)

    async def update(
        self, resource: Resource[ObjectT], body: Mapping[str, Any], *, subresource: str = ""
    ) -> ObjectT:
        """Replace an object, if its resourceVersion at the server is still that of `body`.

        :raises Conflict: the object has changed since.
        """
        meta = _metadata(body)
        if not meta.get("resourceVersion"):
            raise InvariantError(
                "an update must contain the resourceVersion of the object that was read"
            )
        namespace, name = meta.get("namespace", ""), meta.get("name", "")
        path = _path(resource, namespace, name, subresource)
        request = self._request("PUT", path, body=body, query=self._writer())
        doing = f"update {_what(resource, subresource)} {_ref(namespace, name)}"
        return _object(resource, await self._send(request, doing), doing)

    async def patch(
        self,
        resource: Resource[ObjectT],
        name: str,
        patch: Patch,
        namespace: str = "",
        *,
        subresource: str = "",
        dry_run: bool = False,
        keep_raw: bool = False,
    ) -> ObjectT:
        """Patch an object or its subresource.

        :raises Conflict: a precondition does not hold, or another manager owns a field.
        """
        applies = isinstance(patch, ApplyPatch)
        force = _if("force", "true" if isinstance(patch, ApplyPatch) and patch.force else "")
        request = self._request(
            "PATCH",
            _path(resource, namespace, name, subresource),
            body=patch.body,
            query=(*self._writer(dry_run), *force),
            content_type=patch.content_type,
        )
        verb = "apply" if applies else "patch"
        doing = f"{verb} {_what(resource, subresource)} {_ref(namespace, name)}"
        body = await self._send(request, doing, idempotent=applies)
        return _object(resource, body, doing, keep_raw=keep_raw)

    async def delete(
        self,
        resource: Resource[ObjectT],
        name: str,
        namespace: str = "",
        *,
        uid: str | None,
        resource_version: str | None = None,
        grace_s: int | None = None,
        propagation: Propagation | None = None,
    ) -> None:
        """Delete the object with this UID; with `uid` None, any object of this name.

        :raises Conflict: the object of this name has another UID.
        """
        body = _delete_options(uid, resource_version, grace_s, propagation)
        request = self._request("DELETE", _path(resource, namespace, name), body=body)
        await self._send(request, f"delete {resource} {_ref(namespace, name)}")

    async def delete_all(
        self,
        resource: Resource[ObjectT],
        namespace: str = "",
        *,
        labels: str = "",
        fields: str = "",
        resource_version: str | None = None,
        grace_s: int | None = None,
        propagation: Propagation | None = None,
    ) -> None:
        """Delete all objects that match the selectors, of which at least one is required."""
        chosen = _selection(labels, fields)
        if not chosen:
            raise InvariantError(
                "deleting a collection needs a label or field selector", resource=str(resource)
            )
        body = _delete_options(None, resource_version, grace_s, propagation)
        path = resource.path(namespace)
        await self._send(
            self._request("DELETE", path, body=body, query=chosen),
            f"delete {resource} in {namespace or 'all namespaces'}",
        )

    # Other requests

    async def request(
        self,
        method: str,
        path: str,
        *,
        query: Iterable[tuple[str, str]] = (),
        body: Mapping[str, Any] | None = None,
        accept: str = "application/json",
        idempotent: bool = False,
    ) -> bytes:
        """Send a request to any path of the server and return the body of the answer; `idempotent`
        allows retries of a POST that changes nothing."""
        request = self._request(method, path, query=tuple(query), body=body, accept=accept)
        return await self._send(request, f"{method} {path}", idempotent=idempotent)

    async def request_json(self, method: str, path: str, **options: Any) -> Json:
        """Send a request and return its answer, a JSON object."""
        return _json(await self.request(method, path, **options), f"{method} {path}")

    @asynccontextmanager
    async def upgrade(
        self,
        method: str,
        path: str,
        *,
        protocol: str,
        query: Iterable[tuple[str, str]] = (),
        headers: Mapping[str, str] | None = None,
    ) -> AsyncIterator[Tunnel]:
        """Switch protocols and yield the tunnel, which relays bytes in both directions."""
        parameters, timeout_s = tuple(query), self._timeout_s
        request = Request(
            method, path, query=parameters, accept="*/*", headers=headers or {}, timeout_s=timeout_s
        )
        async with self.transport.upgrade(request, protocol) as tunnel:
            yield tunnel

    # Sending

    def _request(
        self,
        method: str,
        path: str,
        *,
        query: tuple[tuple[str, str], ...] = (),
        body: object = None,
        content_type: str = "application/json",
        accept: str = "application/json",
    ) -> Request:
        return Request(
            method,
            path,
            query=query,
            body=None if body is None else encode(body),
            content_type=content_type,
            accept=accept,
            timeout_s=self._timeout_s,
        )

    async def _send(self, request: Request, doing: str, *, idempotent: bool = False) -> bytes:
        idempotent = idempotent or not request.writes
        left_s = self._timeout_s
        attempt = 0
        while True:
            attempt += 1
            if self._limit is not None:
                await self._limit.take()
            began = self._clock.monotonic()
            try:
                return await self._try(request, doing)
            except ApiError as error:
                if attempt >= self._retry.attempts or not repeatable(error, idempotent=idempotent):
                    raise
                delay_s = self._retry.delay_s(attempt, error)
                left_s -= self._clock.monotonic() - began + delay_s
                if left_s <= 0:
                    raise
            await self._clock.sleep(delay_s)
            request = replace(request, timeout_s=left_s)

    async def _try(self, request: Request, doing: str) -> bytes:
        response = await self.transport.send(request)
        if 200 <= response.status < 300:
            if self.answer_budget.limited and has_too_many_values(response.body):
                raise ResponseTooLarge(f"could not {doing}: the response has {TOO_MANY_VALUES}")
            return response.body
        raise api_error(
            response.status,
            response.body,
            doing=doing,
            retry_after=response.headers.get("Retry-After", ""),
        )

    def _writer(self, dry_run: bool = False) -> tuple[tuple[str, str], ...]:
        return (("fieldManager", self.field_manager), *_if("dryRun", "All" if dry_run else ""))


def connect(
    kubeconfig: str | Path,
    *,
    context: str | None = None,
    cluster: str = "",
    field_manager: str = "kubeocean",
    wrap: Callable[[Transport], Transport] | None = None,
    clock: Clock | None = None,
    qps: float | None = None,
    allow_exec: bool = False,
) -> Client:
    """Return a client for a kubeconfig file, whose changes are followed.

    Credential plugins run only with `allow_exec`.
    """
    source = KubeconfigAccess(kubeconfig, context=context, allow_exec=allow_exec, clock=clock)
    transport: Transport = HttpTransport(source, clock=clock)
    if wrap is not None:
        transport = wrap(transport)
    return Client(transport, cluster=cluster, field_manager=field_manager, clock=clock, qps=qps)


def _selection(labels: str, fields: str) -> tuple[tuple[str, str], ...]:
    """Return the query parameters of a label selector and a field selector."""
    return (*_if("labelSelector", labels), *_if("fieldSelector", fields))


def _if(name: str, value: str) -> tuple[tuple[str, str], ...]:
    return ((name, value),) if value else ()


def _path(resource: Resource[Any], namespace: str, name: str, subresource: str = "") -> str:
    """Return the path of one object. Refuses an empty name, which would give the path of the
    collection."""
    if not name:
        raise InvariantError(
            "the name of the object is empty", resource=str(resource), namespace=namespace
        )
    return resource.path(namespace, name, subresource)


def _object(
    resource: Resource[ObjectT], body: bytes, doing: str, *, keep_raw: bool = False
) -> ObjectT:
    try:
        return decode_object(resource.type, body, keep_raw=keep_raw)
    except _UNREADABLE as error:
        raise _unreadable(doing, error) from error


def _json(body: bytes, doing: str) -> Json:
    try:
        return _decode_json(body)
    except _UNREADABLE as error:
        raise _unreadable(doing, error) from error


def _unreadable(doing: str, error: Exception) -> InternalError:
    """Return the InternalError for a malformed answer of the server."""
    return InternalError(f"could not {doing}: the answer cannot be read: {error}")


def _metadata(body: Mapping[str, Any]) -> Mapping[str, Any]:
    if isinstance(body, msgspec.Struct) or not isinstance(body, Mapping):
        raise InvariantError(
            "a decoded object must not be written: fields that its type lacks would be lost",
            type=type(body).__name__,
        )
    metadata: Mapping[str, Any] = body.get("metadata") or {}
    return metadata


def _delete_options(
    uid: str | None,
    resource_version: str | None,
    grace_s: int | None,
    propagation: Propagation | None,
) -> Json:
    preconditions = {"uid": uid, "resourceVersion": resource_version}
    options = {
        "apiVersion": "v1",
        "kind": "DeleteOptions",
        "preconditions": {k: v for k, v in preconditions.items() if v is not None} or None,
        "gracePeriodSeconds": grace_s,
        "propagationPolicy": propagation,
    }
    return {name: value for name, value in options.items() if value is not None}


def _ref(namespace: str, name: str) -> str:
    """Return namespace and name for a text; a name may come from another cluster."""
    return printable(f"{namespace}/{name}" if namespace else name)


def _what(resource: Resource[Any], subresource: str) -> str:
    return f"{resource}/{subresource}" if subresource else str(resource)
