"""Identity and version of a worker cluster, and a transport that sends nothing to another one.

A cluster is identified by the UID of its namespace `kube-system`, which exists as long as the
cluster.

A kubeconfig is edited by people, and may come to point to another cluster. If that cluster were
taken for the worker, all pods would be missing and would be created again in a cluster of others.
So before the first request, and before the first request to another address or CA, the identity of
the cluster is read. While the kubeconfig points to another cluster, requests fail with
`Unreachable` and are not sent, and handlers are called with the reason. When the kubeconfig points
to the worker again, requests are sent again.

The right worker is the one recorded on the binding by the syncer at its first contact; else the one
recorded on the Secret by `join`; else the first that this process met. A cluster whose identity may
not be read is accepted at the start, and later on while its address or its CA stays the same.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Final

from kubeocean.api.bindings import ClusterBinding
from kubeocean.api.group import SYSTEM_NAMESPACE, Domain
from kubeocean.errors import ApiError, Forbidden, NotFound, Unauthorized, Unreachable
from kubeocean.runtime.access import Access
from kubeocean.runtime.client import Client
from kubeocean.runtime.credentials import AccessSource, StaticAccess
from kubeocean.runtime.kinds import NAMESPACES
from kubeocean.runtime.logs import get_logger
from kubeocean.runtime.objects import Json
from kubeocean.runtime.retries import RetryPolicy
from kubeocean.runtime.transport import HttpTransport, Request, Response, Stream, Transport
from kubeocean.runtime.tunnel import Tunnel
from kubeocean.worker_access.credentials import SecretAccess

__all__ = [
    "OLDEST",
    "IdentityCheckedTransport",
    "WorkerIdentity",
    "identity_of",
    "recorded_worker",
    "release_of",
]

OLDEST: Final = (1, 28)  # the oldest version that is tested
_TIMEOUT_S: Final = 5.0
_LARGEST: Final = 4 << 20  # bytes of an answer; objects in etcd are far smaller
_DIGITS: Final = re.compile(r"[0-9]{1,9}")  # Python refuses to parse thousands of digits
_HIDDEN: Final = (
    "hidden"  # stands for the identity of a cluster that may not be read; never accepted
)

_log = get_logger(__name__)


async def identity_of(cluster: Client) -> str:
    """Return the identity of a cluster: the UID of its namespace `kube-system`."""
    return (await cluster.get(NAMESPACES, SYSTEM_NAMESPACE)).uid


def recorded_worker(binding: ClusterBinding, access: SecretAccess, domain: Domain) -> str:
    """Return the identity of a worker that is recorded on the binding or its Secret; empty without
    a record."""
    key = domain.worker_cluster_id
    return binding.annotations.get(key, "") or access.annotations.get(key, "")


def _connect(source: AccessSource) -> Transport:
    return HttpTransport(source, largest=_LARGEST)


class WorkerIdentity:
    """`AccessSource` that keeps the last access that pointed to the right worker.

    `recorded` returns the identity of the right worker; empty without a record.
    """

    def __init__(
        self,
        source: AccessSource,
        recorded: Callable[[], str],
        *,
        connect: Callable[[AccessSource], Transport] = _connect,
    ) -> None:
        self._source = source
        self._recorded = recorded
        self._connect = connect
        self._accepted: Access | None = None  # the last access that led to the right worker…
        self._worker_id = ""  # …and the worker's identity, once known
        self._checked: Access | None = None  # the last access that was checked…
        self._checked_id = ""  # …and the identity of its cluster; empty if hidden and accepted
        self._error = ""
        self._checking = asyncio.Lock()
        self._handlers: list[Callable[[str], None]] = []

    @property
    def worker_id(self) -> str:
        """Identity of the worker cluster; empty while unknown."""
        return self._worker_id

    def on_change(self, handler: Callable[[str], None]) -> None:
        """Call `handler` with the reason when the kubeconfig points to another cluster, and with an
        empty text when the kubeconfig points to the worker again."""
        self._handlers.append(handler)

    @property
    def interval_s(self) -> float:
        return self._source.interval_s

    @property
    def refresh_first(self) -> bool:
        return self._source.refresh_first

    def current(self) -> Access:
        return self._accepted or self._source.current()

    async def refresh(self, *, rejected: bool = False) -> bool:
        before = self.current()
        await self._source.refresh(rejected=rejected)
        self._is_checked()
        return self.current() is not before

    async def check(self) -> None:
        """Check that requests go to the right worker; reads the identity of a cluster that was not
        checked.

        :raises Unreachable: requests would go to another cluster, or its identity could not be
            read.
        """
        while not self._is_checked():
            # One waiter reads the identity for all of them.
            async with self._checking:
                if not self._is_checked():
                    await self._read_identity(self._source.current())
        self._compare()
        if self._error:
            if self._checked_id == _HIDDEN:
                self._checked = None  # the identity may be readable at the next check
            raise Unreachable(self._error, sent=False)

    def _is_checked(self) -> bool:
        """Return whether the source's access was checked. An access to the same server as the
        accepted one counts as checked, and replaces the accepted one."""
        access = self._source.current()
        if access is self._checked:
            return True
        if self._accepted is None or _server(access) != _server(self._accepted):
            return False
        self._checked = self._accepted = access
        self._checked_id = self._worker_id
        return True

    async def _read_identity(self, access: Access) -> None:
        client = Client(
            self._connect(StaticAccess(access)),
            cluster="worker",
            timeout_s=_TIMEOUT_S,
            retry=RetryPolicy(attempts=1),
        )
        try:
            identity = await identity_of(client)
        except (Forbidden, NotFound, Unauthorized) as error:
            identity = self._assumed_identity(access)
            _log.warning(
                "Could not read the identity of the worker cluster",
                server=access.server,
                consequence=_consequence(identity),
                error=str(error),
            )
        except Unreachable:
            raise
        except ApiError as error:
            raise Unreachable(
                f"could not read the identity of the worker cluster at {access.server}: {error}",
                sent=False,
            ) from error
        finally:
            await client.close()
        self._checked, self._checked_id = access, identity

    def _assumed_identity(self, access: Access) -> str:
        """Return the identity to assume for a cluster whose identity may not be read."""
        accepted = self._accepted
        if accepted is None or not (self._recorded() or self._worker_id):
            return ""
        same_ca = access.ca is not None and access.ca == accepted.ca
        return self._worker_id if same_ca or access.server == accepted.server else _HIDDEN

    def _compare(self) -> None:
        """Accept the checked access if it points to the worker, and call the handlers if the result
        has changed."""
        assert self._checked is not None
        worker_id, error = self._recorded() or self._worker_id, ""
        if worker_id and self._checked_id not in ("", worker_id):
            error = self._mismatch(self._checked.server, worker_id)
        else:
            self._accepted = self._checked
            self._worker_id = self._checked_id or self._worker_id
        if error == self._error:
            return
        self._error = error
        if error:
            _log.error("Rejected kubeconfig of worker, it points to another cluster", error=error)
        else:
            _log.info("Accepted kubeconfig of worker again", server=self._checked.server)
        for handler in self._handlers:
            handler(error)

    def _mismatch(self, server: str, worker_id: str) -> str:
        identity = f"is {self._checked_id}"
        if self._checked_id == _HIDDEN:
            identity = f"does not permit reading namespace {SYSTEM_NAMESPACE}, which identifies it"
        return f"the cluster at {server} {identity}, and the binding is for {worker_id}"


def _consequence(assumed: str) -> str:
    """Return a text about the consequence of assuming an identity that could not be read."""
    if assumed == _HIDDEN:
        return "requests to the cluster are refused until its identity can be read"
    if assumed:
        return "the cluster is assumed to be the one that the previous kubeconfig pointed to"
    return "the kubeconfig is used without a check that it points to the worker"


def _server(access: Access) -> tuple[object, ...]:
    """Return the parts of an access that determine its cluster."""
    return access.server, access.ca, access.insecure, access.tls_server_name, access.proxy_url


class IdentityCheckedTransport:
    """Transport that sends requests to the right worker cluster only.

    `inner` gets its access from the same `identity`.
    """

    def __init__(self, inner: Transport, identity: WorkerIdentity) -> None:
        self._inner = inner
        self._identity = identity

    @property
    def generation(self) -> int:
        return self._inner.generation

    async def send(self, request: Request) -> Response:
        await self._identity.check()
        return await self._inner.send(request)

    @asynccontextmanager
    async def stream(self, request: Request) -> AsyncIterator[Stream]:
        await self._identity.check()
        async with self._inner.stream(request) as stream:
            yield stream

    @asynccontextmanager
    async def upgrade(self, request: Request, protocol: str) -> AsyncIterator[Tunnel]:
        await self._identity.check()
        async with self._inner.upgrade(request, protocol) as tunnel:
            yield tunnel

    async def close(self) -> None:
        await self._inner.close()


def release_of(version: Json) -> tuple[str, bool]:
    """Return a server's version, and whether the version is older than `OLDEST` (False if unknown).

    `version` is the answer of the server's page `/version`.
    """
    numbers = [_DIGITS.match(str(version.get(part, ""))) for part in ("major", "minor")]
    release = tuple(int(match[0]) for match in numbers if match is not None)
    old = len(release) == len(OLDEST) and release < OLDEST
    return str(version.get("gitVersion", "")), old
