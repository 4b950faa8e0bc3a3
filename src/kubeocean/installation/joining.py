"""Joining: a worker, bound to the computing cluster from nothing but a way to each.

The worker comes first: what is bound can be reached from its first moment. Each step may be done
again, so whoever is interrupted says the same once more. A token that works is kept until the last
third of its life.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

from kubeocean.api.binding import CLUSTER_BINDINGS
from kubeocean.bound.workers import KUBECONFIG_SECRETS, SecretAccess
from kubeocean.errors import ConfigError, NotFound
from kubeocean.installation.applying import Applier, Fate
from kubeocean.installation.bindings import Joining
from kubeocean.installation.credentials import (
    due,
    kubeconfig,
    kubeconfig_secret,
    secret_name,
    token_request,
)
from kubeocean.installation.tokens import Told, read_token
from kubeocean.installation.workerside import credential_secret, worker_objects
from kubeocean.runtime.access import Access
from kubeocean.runtime.clock import Clock, RealClock
from kubeocean.runtime.kinds import NAMESPACES, SERVICE_ACCOUNTS
from kubeocean.runtime.objects import Json

__all__ = ["Join", "Joined", "identity"]

Tell = Callable[[Json, Fate], None]


@dataclass(frozen=True, slots=True)
class Joined:
    """What came of it: until when the credential is good, and whether it is new."""

    ends: datetime
    renewed: bool


async def identity(applier: Applier) -> str:
    """What tells a cluster from every other."""
    return (await applier.client.get(NAMESPACES, "kube-system")).uid


class Join:
    """Binds one worker. `access` is the way to it that the computing cluster shall take."""

    def __init__(
        self,
        joining: Joining,
        computing: Applier,
        worker: Applier,
        access: Access,
        *,
        clock: Clock | None = None,
    ) -> None:
        self._joining = joining
        self._values = joining.worker
        self._computing = computing
        self._worker = worker
        self._access = access
        self._clock = clock or RealClock()

    async def run(self, tell: Tell = lambda body, fate: None, *, renew: bool = False) -> Joined:
        """Make all objects of both sides.

        :raises ConfigError: it would bind something to itself, or take what is another's.
        """
        computing_id = await self._check()
        await self._worker.apply_all(worker_objects(self._values), tell)
        if (lease := self._joining.policy()) is not None:
            tell(lease, await self._worker.apply(lease))
        content, told, renewed = await self._credential(computing_id, tell, renew=renew)
        domain = self._values.domain
        ends = f"{told.ends:%Y-%m-%dT%H:%M:%SZ}"
        secret = kubeconfig_secret(self._joining.name, content, ends=ends, domain=domain)
        tell(secret, await self._computing.apply(secret))
        binding = self._joining.binding()
        tell(binding, await self._computing.apply(binding))
        return Joined(told.ends, renewed)

    async def _check(self) -> str:
        """The identity of the computing cluster, if the two may be bound."""
        above, below = await identity(self._computing), await identity(self._worker)
        if above == below:
            said = "must lead to another cluster: this is the computing cluster itself"
            raise ConfigError(said, source="--kubeconfig", value=self._access.server)
        try:
            bindings = await self._computing.client.list(CLUSTER_BINDINGS)
        except NotFound:
            said = "the computing cluster does not know bindings; run kubeocean install there first"
            raise ConfigError(said) from None
        wanted = self._joining.spec.cluster_id
        for each in bindings.items:
            named = each.name == self._joining.name
            if named and each.spec.cluster_id != wanted:
                said = f"cannot be changed: it is {each.spec.cluster_id} for binding {each.name}"
                raise ConfigError(said, source="--cluster-id", value=wanted)
            if not named and each.spec.cluster_id == wanted:
                said = f"must be unique: binding {each.name} has it"
                raise ConfigError(said, source="--cluster-id", value=wanted)
        return above

    async def _credential(
        self, computing_id: str, tell: Tell, *, renew: bool
    ) -> tuple[str, Told, bool]:
        """A kubeconfig, what its token says, and whether it is a new one."""
        anchor = credential_secret(self._values, self._joining.name, computing_id)
        fate, there = await self._worker.put(anchor)
        tell(anchor, fate)
        if not renew and (kept := await self._kept(there.uid)) is not None:
            return *kept, False
        answer = await self._worker.client.post(
            SERVICE_ACCOUNTS,
            self._values.account,
            "token",
            token_request(there.name, there.uid),
            there.namespace,
        )
        token = answer["status"]["token"]
        told = read_token(token)
        if told is None:
            ends = datetime.fromisoformat(answer["status"]["expirationTimestamp"])
            told = Told(self._clock.now(), ends, there.uid)
        return self._content(token), told, True

    async def _kept(self, anchor_uid: str) -> tuple[str, Told] | None:
        """The kubeconfig that is in use, if it leads the same way and holds for long enough."""
        domain, name = self._values.domain, secret_name(self._joining.name)
        try:
            secret = await self._computing.client.get(
                KUBECONFIG_SECRETS, name, domain.system_namespace
            )
            access = SecretAccess(secret).current()
        except (NotFound, ConfigError):
            return None
        token = access.token.reveal() if access.token is not None else ""
        told = read_token(token)
        if told is None or told.secret_uid != anchor_uid:
            return None
        if due(told.begins, told.ends, self._clock.now()):
            return None
        same = (access.server, access.ca) == (self._access.server, self._access.ca)
        return (self._content(token), told) if same else None

    def _content(self, token: str) -> str:
        return kubeconfig(self._access, token, namespace=self._values.mount_namespace)
