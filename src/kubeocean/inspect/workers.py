"""Connections to worker clusters, with the credentials in the Secrets that bindings name.

A worker that cannot be reached is not an error but a state: the caller gets a client, or the reason
why there is none. A worker that does not answer delays no other one.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import Final, TypeVar

import msgspec

from kubeocean.api.bindings import ClusterBinding
from kubeocean.api.group import KUBECONFIG_KEY
from kubeocean.api.policies import RESOURCE_LEASING_POLICIES, ResourceLeasingPolicy
from kubeocean.errors import ApiError, ConfigError, Forbidden, NotFound, Unreachable
from kubeocean.inspect.snapshot import NotRead, ServerSnapshot, SnapshotPart, WorkerState
from kubeocean.runtime.access import Access
from kubeocean.runtime.client import Client
from kubeocean.runtime.clock import Clock, RealClock, within
from kubeocean.runtime.credentials import AccessSource
from kubeocean.runtime.kinds import SECRETS_WITH_DATA
from kubeocean.runtime.objects import Json
from kubeocean.runtime.retries import RetryPolicy
from kubeocean.runtime.transport import HttpTransport, Request
from kubeocean.worker_access.client import LARGEST_ANSWER
from kubeocean.worker_access.credentials import SecretAccess

__all__ = [
    "PATIENCE_S",
    "Connect",
    "WorkerConnection",
    "Workers",
    "connect_to_worker",
    "list_policies",
    "read_server",
]

PATIENCE_S: Final = 5.0  # within which a worker has to answer the first request
_ANSWER_S: Final = 10.0
_NO_KIND: Final = "it does not serve ResourceLeasingPolicies: it was not prepared for lending"

Connect = Callable[[AccessSource], Client]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class WorkerConnection:
    """The client of a worker; `message` is the reason if there is none, or if the worker did not
    answer.
    """

    state: WorkerState
    message: str = ""
    client: Client | None = None
    access: Access | None = None


def connect_to_worker(source: AccessSource) -> Client:
    """Return a client for a worker, with short timeouts."""
    return Client(
        HttpTransport(source, largest=LARGEST_ANSWER),
        cluster="worker",
        timeout_s=_ANSWER_S,
        retry=RetryPolicy(attempts=2),
    )


class Workers:
    """The clients of all workers, kept from one snapshot to the next."""

    def __init__(
        self,
        computing: Client,
        *,
        patience_s: float = PATIENCE_S,
        clock: Clock | None = None,
        connect: Connect = connect_to_worker,
    ) -> None:
        self._computing = computing
        self._patience_s = patience_s
        self._clock = clock or RealClock()
        self._connect = connect
        self._clients: dict[str, tuple[SecretAccess, Client]] = {}

    async def close(self) -> None:
        """Close the connections to all workers."""
        while self._clients:
            _, (_, client) = self._clients.popitem()
            await client.close()

    async def connect(self, binding: ClusterBinding) -> WorkerConnection:
        """Return a connection with the credential in the binding's Secret; no request is sent."""
        where = f"{binding.spec.secret_ref.namespace}/{binding.spec.secret_ref.name}"
        try:
            access, client = await self._client(binding)
        except NotFound as error:
            return WorkerConnection(WorkerState.UNUSABLE, str(error))
        except Forbidden:
            return WorkerConnection(WorkerState.NOT_ALLOWED, f"not allowed to read Secret {where}")
        except ApiError as error:
            return WorkerConnection(WorkerState.NOT_ASKED, str(error))
        except ConfigError as error:
            return WorkerConnection(WorkerState.UNUSABLE, _with_secret(binding, str(error)))
        return WorkerConnection(WorkerState.ANSWERED, client=client, access=access.current())

    async def policies(
        self, connection: WorkerConnection
    ) -> tuple[WorkerConnection, tuple[ResourceLeasingPolicy, ...]]:
        """List the policies of a worker; also return the connection with its resulting state."""
        client = connection.client
        if client is None:
            return connection, ()
        try:
            policies = await self._in_time(lambda: list_policies(client))
        except TimeoutError:
            silent = f"no answer within {self._patience_s:g} s"
            return _without_answer(connection, WorkerState.SILENT, silent), ()
        except Unreachable as error:
            return _without_answer(connection, WorkerState.SILENT, str(error)), ()
        except NotFound:
            return _without_answer(connection, WorkerState.REFUSED, _NO_KIND), ()
        except ApiError as error:
            return _without_answer(connection, WorkerState.REFUSED, str(error)), ()
        return connection, policies

    async def probe(self, connection: WorkerConnection) -> WorkerConnection:
        """Read a worker's version; the connection has no client if the worker does not answer."""
        client, access = connection.client, connection.access
        if client is None or access is None:
            return connection
        try:
            await self._in_time(lambda: client.request_json("GET", "/version"))
        except TimeoutError:
            silent = f"could not reach {access.server}: no answer within {self._patience_s:g} s"
            return WorkerConnection(WorkerState.SILENT, silent, access=access)
        except Unreachable as error:
            return WorkerConnection(WorkerState.SILENT, str(error), access=access)
        except ApiError as error:
            return WorkerConnection(WorkerState.REFUSED, str(error), access=access)
        return connection

    async def _in_time(self, work: Callable[[], Awaitable[T]]) -> T:
        return await within(self._clock, self._patience_s, work)

    async def _client(self, binding: ClusterBinding) -> tuple[SecretAccess, Client]:
        where = binding.spec.secret_ref
        if not (where.name and where.namespace):
            raise ConfigError(
                "must have the name and the namespace of a Secret", field="spec.secretRef"
            )
        secret = await self._computing.get(SECRETS_WITH_DATA, where.name, where.namespace)
        fresh = SecretAccess(secret)
        known = self._clients.get(binding.name)
        if known is None:
            known = self._clients[binding.name] = fresh, self._connect(fresh)
        else:
            known[0].follow(None, secret)
        return known


async def read_server(client: Client, name: str, clock: Clock) -> ServerSnapshot:
    """Read the version of an API server, and its clock from the `Date` of the same answer."""
    began = clock.now()
    try:
        answer = await client.transport.send(Request("GET", "/version", timeout_s=_ANSWER_S))
    except ApiError as error:
        unread = NotRead(f"version of {name}", str(error))
        return ServerSnapshot(version=unread, skew=unread)
    ended = clock.now()
    return ServerSnapshot(
        version=_version(answer.status, answer.body, name),
        skew=_skew(answer.headers.get("Date", ""), name, began, ended),
    )


def _version(status: int, body: bytes, name: str) -> SnapshotPart[Json]:
    what = f"version of {name}"
    if status != 200:
        return NotRead(what, f"the answer to GET /version was HTTP {status}")
    try:
        return msgspec.json.decode(body, type=dict[str, object])
    except msgspec.MsgspecError as error:
        return NotRead(what, f"the answer to GET /version is not an object: {error}")


def _skew(date: str, name: str, began: datetime, ended: datetime) -> SnapshotPart[timedelta]:
    """Return how far a server's clock is ahead of this machine's, by the header `Date`.

    The header has whole seconds.
    """
    try:
        instant = parsedate_to_datetime(date)
    except ValueError:
        return NotRead(f"clock of {name}", "the answer of the API server has no Date header")
    return instant + timedelta(seconds=0.5) - (began + (ended - began) / 2)


def _without_answer(
    connection: WorkerConnection, state: WorkerState, message: str
) -> WorkerConnection:
    return WorkerConnection(state, message, connection.client, connection.access)


def _with_secret(binding: ClusterBinding, message: str) -> str:
    """Return an error message about a kubeconfig, with the name of its Secret."""
    ref = binding.spec.secret_ref
    secret = f"Secret {ref.namespace}/{ref.name}"
    if secret in message or not ref.name:
        return message
    return f"{secret}: data.{KUBECONFIG_KEY}: {message}"


async def list_policies(worker: Client) -> tuple[ResourceLeasingPolicy, ...]:
    """List all policies of a worker.

    :raises ApiError: they cannot be listed.
    """
    return tuple((await worker.list(RESOURCE_LEASING_POLICIES)).items)
