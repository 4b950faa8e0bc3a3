"""Sides: the worker of a binding, for those who look at it now and then.

A worker that cannot be reached is no failure here but something to tell: who looks gets a client,
or the reason why there is none. Nobody who waits for an answer waits long.
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Final

from kubeocean.api.binding import CLUSTER_BINDINGS, ClusterBinding
from kubeocean.bound.workers import KUBECONFIG_SECRETS, SecretAccess
from kubeocean.errors import ApiError, ConfigError, NotFound
from kubeocean.runtime.access import Access
from kubeocean.runtime.client import Client
from kubeocean.runtime.credentials import AccessSource
from kubeocean.runtime.retries import RetryPolicy
from kubeocean.runtime.transport import HttpTransport

__all__ = ["PATIENCE_S", "Below", "find_binding", "patient_client", "reach_worker"]

PATIENCE_S: Final = 10.0  # for one answer
_FIRST_S: Final = 5.0  # for a worker to say that it is there, however often it is tried


@dataclass(frozen=True, slots=True)
class Below:
    """The way to a worker; without a client, `problem` says why there is none."""

    client: Client | None = None
    access: Access | None = None
    problem: str = ""


def patient_client(source: AccessSource, cluster: str, stack: AsyncExitStack) -> Client:
    """A client for a person who waits; closed with the stack."""
    client = Client(
        HttpTransport(source),
        cluster=cluster,
        timeout_s=PATIENCE_S,
        retry=RetryPolicy(attempts=2),
    )
    stack.push_async_callback(client.close)
    return client


async def find_binding(computing: Client, name: str, option: str) -> ClusterBinding:
    """The binding that somebody named with an option or argument.

    :raises ConfigError: there is none; which there are is said.
    """
    try:
        return await computing.get(CLUSTER_BINDINGS, name)
    except NotFound:
        there = (await computing.list(CLUSTER_BINDINGS)).items
        known = ", ".join(sorted(each.name for each in there)) or "none"
        said = f"there is no such binding; there are: {known}"
        raise ConfigError(said, source=option, value=name) from None


async def reach_worker(computing: Client, binding: ClusterBinding, stack: AsyncExitStack) -> Below:
    """The worker, with the credentials that the binding names; it was asked who it is."""
    where = binding.spec.secret_ref
    if not where.name or not where.namespace:
        return Below(problem="the binding names no Secret")
    try:
        source = SecretAccess(await computing.get(KUBECONFIG_SECRETS, where.name, where.namespace))
    except ApiError as error:
        return Below(problem=str(error))
    except ConfigError as error:
        whose, said = f"Secret {where.namespace}/{where.name}", str(error)
        return Below(problem=said if whose in said else f"{whose}: {said}")
    client = patient_client(source, "worker", stack)
    try:
        async with asyncio.timeout(_FIRST_S):
            await client.request_json("GET", "/version")
    except TimeoutError:
        server = source.current().server
        said = f"could not reach {server}: it did not answer within {_FIRST_S:g} s"
        return Below(access=source.current(), problem=said)
    except ApiError as error:
        return Below(access=source.current(), problem=str(error))
    return Below(client, source.current())
