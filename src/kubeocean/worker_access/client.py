"""Clients for commands that read a binding's worker cluster once.

A worker that cannot be reached is no error here: the result is a client, or the reason why there is
none, after a short time. `PartialReads` collects the reads that failed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Final, TypeVar

from kubeocean.api.bindings import CLUSTER_BINDINGS, ClusterBinding
from kubeocean.errors import ApiError, ConfigError, NotFound
from kubeocean.runtime.access import Access
from kubeocean.runtime.client import Client
from kubeocean.runtime.credentials import AccessSource
from kubeocean.runtime.retries import RetryPolicy
from kubeocean.runtime.transport import HttpTransport
from kubeocean.worker_access.credentials import KUBECONFIG_SECRETS, SecretAccess

__all__ = [
    "PATIENCE_S",
    "PartialReads",
    "WorkerConnection",
    "connect_worker",
    "find_binding",
    "retrying_client",
]

PATIENCE_S: Final = 10.0  # for one request
_CONNECT_S: Final = 5.0  # for the first request to a worker, with its retries


@dataclass(frozen=True, slots=True)
class WorkerConnection:
    """A client for a worker, or the `problem` why there is none.

    `unread` is set where the computing cluster did not let us read the Secret.
    """

    client: Client | None = None
    access: Access | None = None
    problem: str = ""
    unread: bool = False


def retrying_client(source: AccessSource, cluster: str, stack: AsyncExitStack) -> Client:
    """A client for an interactive command, with short timeouts; the stack closes it."""
    client = Client(
        HttpTransport(source),
        cluster=cluster,
        timeout_s=PATIENCE_S,
        retry=RetryPolicy(attempts=2),
    )
    stack.push_async_callback(client.close)
    return client


async def find_binding(computing: Client, name: str, option: str) -> ClusterBinding:
    """Get the binding that an option or argument names.

    :raises ConfigError: there is no such binding; the message lists the ones that exist.
    """
    try:
        return await computing.get(CLUSTER_BINDINGS, name)
    except NotFound:
        bindings = (await computing.list(CLUSTER_BINDINGS)).items
        names = ", ".join(sorted(each.name for each in bindings)) or "none"
        message = f"there is no such binding; there are: {names}"
        raise ConfigError(message, source=option, value=name) from None


async def connect_worker(
    computing: Client, binding: ClusterBinding, stack: AsyncExitStack
) -> WorkerConnection:
    """Connect to a worker with the credential that its binding names."""
    reference = binding.spec.secret_ref
    if not reference.name or not reference.namespace:
        return WorkerConnection(problem="the binding names no Secret")
    try:
        secret = await computing.get(KUBECONFIG_SECRETS, reference.name, reference.namespace)
        source = SecretAccess(secret)
    except ApiError as error:
        return WorkerConnection(problem=str(error), unread=not isinstance(error, NotFound))
    except ConfigError as error:
        name, problem = f"Secret {reference.namespace}/{reference.name}", str(error)
        return WorkerConnection(problem=problem if name in problem else f"{name}: {problem}")
    client = retrying_client(source, "worker", stack)
    try:
        async with asyncio.timeout(_CONNECT_S):
            await client.request_json("GET", "/version")
    except TimeoutError:
        server = source.current().server
        problem = f"could not reach {server}: it did not answer within {_CONNECT_S:g} s"
        return WorkerConnection(access=source.current(), problem=problem)
    except ApiError as error:
        return WorkerConnection(access=source.current(), problem=str(error))
    return WorkerConnection(client, source.current())


T = TypeVar("T")


class PartialReads:
    """Reads of which some may fail; `unread` lists those that did, and why."""

    def __init__(self) -> None:
        self.unread: list[str] = []

    async def read(self, what: str, reading: Awaitable[T], otherwise: T) -> T:
        """Await a read of `what`; return `otherwise` if it does not exist or cannot be read."""
        try:
            return await reading
        except NotFound:
            return otherwise
        except ApiError as error:
            self.unread.append(f"{what}: {error}")
            return otherwise
