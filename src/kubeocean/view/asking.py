"""Asking workers: each by the Secret that its binding names, and each for itself.

A worker that does not answer in time has not answered; nobody else waits for it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from kubeocean.api.binding import ClusterBinding
from kubeocean.api.group import KUBECONFIG_KEY
from kubeocean.api.policy import RESOURCE_LEASING_POLICIES, ResourceLeasingPolicy
from kubeocean.bound.workers import KUBECONFIG_SECRETS, SecretAccess
from kubeocean.errors import ApiError, ConfigError, Forbidden, NotFound, Unreachable
from kubeocean.runtime.client import Client
from kubeocean.runtime.clock import Clock
from kubeocean.runtime.credentials import AccessSource
from kubeocean.runtime.deadlines import within
from kubeocean.runtime.transport import HttpTransport
from kubeocean.view.facts import Below
from kubeocean.view.model import WorkerState

__all__ = ["Connect", "Workers", "connect_worker"]

Connect = Callable[[AccessSource], Client]

_NOT_THERE: Final = "it has no ResourceLeasingPolicies: nobody has prepared it for lending"


def connect_worker(source: AccessSource) -> Client:
    """A client for a worker."""
    return Client(HttpTransport(source), cluster="worker")


class Workers:
    """Clients of workers, kept from one look to the next."""

    def __init__(
        self, computing: Client, *, patience_s: float, clock: Clock, connect: Connect
    ) -> None:
        self._computing = computing
        self._patience_s = patience_s
        self._clock = clock
        self._connect = connect
        self._known: dict[str, tuple[SecretAccess, Client]] = {}

    async def close(self) -> None:
        """Give back the connections."""
        while self._known:
            _, (_, client) = self._known.popitem()
            await client.close()

    async def ask(self, binding: ClusterBinding) -> Below:
        """What the worker of a binding says; never an error."""
        try:
            client = await self._client(binding)
        except Forbidden:
            where = f"{binding.spec.secret_ref.namespace}/{binding.spec.secret_ref.name}"
            return Below(WorkerState.NOT_ALLOWED, f"not allowed to read Secret {where}")
        except ApiError as error:
            return Below(WorkerState.UNUSABLE, str(error))
        except ConfigError as error:
            return Below(WorkerState.UNUSABLE, _named(binding, str(error)))
        try:
            policies = await within(self._clock, self._patience_s, lambda: _policies(client))
        except TimeoutError:
            return Below(WorkerState.SILENT, f"no answer within {self._patience_s:g} s")
        except Unreachable as error:
            return Below(WorkerState.SILENT, str(error))
        except NotFound:
            return Below(WorkerState.REFUSED, _NOT_THERE)
        except ApiError as error:
            return Below(WorkerState.REFUSED, str(error))
        return Below(WorkerState.ANSWERED, policies=policies)

    async def _client(self, binding: ClusterBinding) -> Client:
        """The way to a worker, as the Secret says now."""
        where = binding.spec.secret_ref
        if not (where.name and where.namespace):
            raise ConfigError("names no Secret", field="spec.secretRef")
        secret = await self._computing.get(KUBECONFIG_SECRETS, where.name, where.namespace)
        fresh = SecretAccess(secret)
        known = self._known.get(binding.name)
        if known is None:
            known = self._known[binding.name] = fresh, self._connect(fresh)
        else:
            known[0].follow(None, secret)
        return known[1]


def _named(binding: ClusterBinding, said: str) -> str:
    """A kubeconfig does not know in which Secret it is; who has to mend it should."""
    ref = binding.spec.secret_ref
    secret = f"Secret {ref.namespace}/{ref.name}"
    return said if secret in said or not ref.name else f"{secret}: data.{KUBECONFIG_KEY}: {said}"


async def _policies(worker: Client) -> tuple[ResourceLeasingPolicy, ...]:
    return tuple((await worker.list(RESOURCE_LEASING_POLICIES)).items)
