"""Joining: a worker, bound to the computing cluster from nothing but a way to each.

The worker comes first: what is bound can be reached from its first moment. Each step may be done
again, so whoever is interrupted says the same once more. A token that works is kept until the last
third of its life. A binding stays with its worker: a syncer that was led to another one would take
all pods of the first for gone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

from kubeocean.api.binding import CLUSTER_BINDINGS, ClusterBinding
from kubeocean.api.group import Domain
from kubeocean.api.policy import RESOURCE_LEASING_POLICIES
from kubeocean.bound.workers import KUBECONFIG_SECRETS, KubeconfigSecret, SecretAccess
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
from kubeocean.installation.workerside import (
    credential_secret,
    withdrawn_objects,
    worker_objects,
)
from kubeocean.runtime.access import Access
from kubeocean.runtime.clock import Clock, RealClock
from kubeocean.runtime.kinds import NAMESPACES, SERVICE_ACCOUNTS
from kubeocean.runtime.objects import Json

__all__ = ["Join", "Joined", "identity", "leads_to", "policy_holder", "two_clusters"]

Tell = Callable[[Json, Fate], None]


@dataclass(frozen=True, slots=True)
class Joined:
    """What came of it: until when the credential is good, and whether it is new."""

    ends: datetime
    renewed: bool


async def identity(applier: Applier) -> str:
    """What tells a cluster from every other."""
    return (await applier.client.get(NAMESPACES, "kube-system")).uid


async def policy_holder(worker: Applier, name: str, domain: Domain) -> str:
    """Which computing cluster a policy of the worker lends to; empty if there is none, or nobody
    has taken it yet."""
    try:
        there = await worker.client.get(RESOURCE_LEASING_POLICIES, name)
    except NotFound:
        return ""
    return there.annotations.get(domain.computing_cluster_id, "")


async def two_clusters(computing: Applier, worker: Applier, access: Access) -> tuple[str, str]:
    """The identities of both; `access` is how the worker is reached.

    :raises ConfigError: they are one.
    """
    above, below = await identity(computing), await identity(worker)
    if above == below:
        said = "must lead to another cluster: this is the computing cluster itself"
        raise ConfigError(said, source="--kubeconfig", value=access.server)
    return above, below


def leads_to(
    binding: ClusterBinding | None,
    secret: KubeconfigSecret | None,
    worker_id: str,
    access: Access,
    domain: Domain,
) -> bool:
    """Whether a binding, with its kubeconfig, is of the worker that is reached by `access`: as the
    binding says, else the Secret. If neither does, as far as the kubeconfig tells: a cluster that
    moves keeps its authority, one that gets a new authority stays where it is."""
    for each in (binding, secret):
        if each is not None and (known := each.annotations.get(domain.worker_cluster_id, "")):
            return known == worker_id
    if secret is None:
        return True
    try:
        old = SecretAccess(secret).current()
    except ConfigError:
        return True
    return old.server == access.server or old.ca == access.ca


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
        computing_id, worker_id = await self._check()
        await self._worker.apply_all(worker_objects(self._values), tell)
        for body in reversed(withdrawn_objects(self._values)):
            if (fate := await self._worker.remove(body)) is not Fate.ABSENT:
                tell(body, fate)
        if (lease := self._joining.policy()) is not None:
            tell(lease, await self._worker.apply(lease))
        content, told, renewed = await self._credential(computing_id, tell, renew=renew)
        domain = self._values.domain
        ends = f"{told.ends:%Y-%m-%dT%H:%M:%SZ}"
        secret = kubeconfig_secret(
            self._joining.name, content, ends=ends, worker_id=worker_id, domain=domain
        )
        tell(secret, await self._computing.apply(secret))
        binding = self._joining.binding()
        tell(binding, await self._computing.apply(binding))
        return Joined(told.ends, renewed)

    async def _check(self) -> tuple[str, str]:
        """The identities of the computing cluster and of the worker, if they may be bound."""
        above, below = await two_clusters(self._computing, self._worker, self._access)
        try:
            bindings = await self._computing.client.list(CLUSTER_BINDINGS)
        except NotFound:
            said = "the computing cluster does not know bindings; run kubeocean install there first"
            raise ConfigError(said) from None
        await self._check_policy(above)
        for each in bindings.items:
            if each.name == self._joining.name:
                _check_same(each, self._joining)
                await self._check_worker(each, below)
            elif each.spec.cluster_id == self._joining.spec.cluster_id:
                said = f"must be unique: binding {each.name} has it"
                raise ConfigError(said, source="--cluster-id", value=each.spec.cluster_id)
        return above, below

    async def _check_policy(self, computing_id: str) -> None:
        """:raises ConfigError: it would change what is lent to another computing cluster."""
        name = self._joining.name
        if self._joining.lease is None:
            return
        if await policy_holder(self._worker, name, self._values.domain) not in ("", computing_id):
            said = "policy of that name lends to another computing cluster; choose another name"
            raise ConfigError(f"the worker's {said}", source="NAME", value=name)

    async def _check_worker(self, binding: ClusterBinding, worker_id: str) -> None:
        """:raises ConfigError: what is bound under this name is another cluster."""
        secret, domain = await self._secret(), self._values.domain
        if not leads_to(binding, secret, worker_id, self._access, domain):
            name = self._joining.name
            said = f"leads to another cluster than the one that is bound as {name}"
            said += f"; choose another name, or let that one go first: kubeocean leave {name}"
            raise ConfigError(said, source="--kubeconfig", value=self._access.server)

    async def _secret(self) -> KubeconfigSecret | None:
        """The kubeconfig that is in use."""
        name, namespace = secret_name(self._joining.name), self._values.domain.system_namespace
        try:
            return await self._computing.client.get(KUBECONFIG_SECRETS, name, namespace)
        except NotFound:
            return None

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
        secret = await self._secret()
        if secret is None:
            return None
        try:
            access = SecretAccess(secret).current()
        except ConfigError:
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


def _check_same(there: ClusterBinding, joining: Joining) -> None:
    """:raises ConfigError: the binding that is there cannot become what is wanted."""
    name, wanted = there.name, joining.spec
    if there.deleting:
        said = f"is being deleted; this waits until it is gone: kubeocean leave {name}"
        raise ConfigError(said, source="NAME", value=name)
    for flag, is_, asked in (
        ("--cluster-id", there.spec.cluster_id, wanted.cluster_id),
        ("--mount-namespace", there.spec.mount_namespace, wanted.mount_namespace),
    ):
        if is_ not in ("", asked):
            said = f"cannot be changed: it is {is_} for binding {name}"
            raise ConfigError(said, source=flag, value=asked)
