"""Replicas: when one of several works, and what it may write.

Replicas compete for a Lease, and the one that leads works alone; the others wait, ready. One that
loses its Lease ends rather than wait for another turn. With `--sharding` all of them work, each on
its part. With neither, whoever runs works.

A leader that works alone begins when nobody shares any more. What is `fenced` asks the election,
or the ring, before each write.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, suppress

from kubeocean.api.group import ENV_POD_NAMESPACE
from kubeocean.bound.settings import ReplicaSettings
from kubeocean.bound.startup import open_client, trace
from kubeocean.errors import ConfigError
from kubeocean.runtime.client import Client
from kubeocean.runtime.credentials import AccessSource, InClusterAccess, default_access
from kubeocean.runtime.election import Election, LeadershipLost, unique_identity
from kubeocean.runtime.fencing import FencedTransport
from kubeocean.runtime.metrics import Metrics
from kubeocean.runtime.requestcounts import CountedTransport
from kubeocean.runtime.transport import HttpTransport, Transport
from kubeocean.sharding.ring import Ring
from kubeocean.sharding.sharing import Sharing
from kubeocean.sharding.vacancy import Vacancy

__all__ = ["Replica"]


class Replica:
    """One of several, as its settings say; what it opens is given back with the stack.

    - `prepared`: returns when enough is known to begin with a part.
    - `control`: a client of the computing cluster that no rate limit and no fence holds up.
    - `sharing`: where all replicas work; its ring is a part of the service.

    :raises KubeoceanError: nothing says how to reach the cluster, or the namespace of the Lease.
    """

    def __init__(
        self,
        settings: ReplicaSettings,
        service: str,
        stack: AsyncExitStack,
        *,
        prepared: Callable[[], Awaitable[None]],
        metrics: Metrics,
        environ: Mapping[str, str],
    ) -> None:
        self.identity = unique_identity()
        trace(stack, service, instance=self.identity, environ=environ)
        self._source = source = default_access(
            settings.kubeconfig or None, environ=environ, allow_exec=settings.allow_exec_plugins
        )
        self._stack = stack
        self._metrics = metrics
        self.control = control = open_client(stack, self.counted(source), "computing")
        self.sharing: Sharing | None = None
        self._election: Election | None = None
        self._vacancy: Vacancy | None = None
        if not settings.sharding and not settings.leader_elect:
            return
        namespace = _election_namespace(settings, source, environ)
        config = settings.ring(namespace)
        if settings.sharding:
            ring = Ring(control, config, metrics=metrics, environ=environ)
            self.sharing = Sharing(ring, prepared=prepared)
            return
        self._vacancy = Vacancy(control, config)
        self._election = Election(
            control,
            namespace=namespace,
            name=settings.election_name,
            identity=self.identity,
            lease_s=settings.lease_s,
            renew_s=settings.renew_s,
            retry_s=settings.retry_s,
            metrics=metrics,
        )

    def client(self, *, qps: float, burst: int) -> Client:
        """A client of the computing cluster for the work itself."""
        transport = self.fenced(self.counted(self._source))
        return open_client(self._stack, transport, "computing", qps=qps, burst=burst)

    def counted(self, source: AccessSource) -> Transport:
        """A way to a cluster whose requests are counted."""
        return CountedTransport(HttpTransport(source), source, self._metrics)

    def fenced(self, transport: Transport) -> Transport:
        """The same, that writes only while this replica may."""
        asked = self._election or self.sharing
        return FencedTransport(transport, asked.check) if asked else transport

    async def run(self, work: Callable[[], Awaitable[None]]) -> None:
        """Work when it is our turn; returns when the work ends, or the turn does."""
        election, vacancy = self._election, self._vacancy
        if election is None or vacancy is None:
            await work()
            return

        async def lead() -> None:
            await vacancy.wait()
            await work()

        # The election has told why it was lost; the service ends because we end.
        with suppress(LeadershipLost):
            await election.run(lead)

    def ready(self, filled: bool) -> bool:
        """Who leads is ready when its caches are `filled`; who does not, when it knows who does.
        Who waits for replicas that share is ready: a rollout ends them only then."""
        if self._vacancy is not None and self._vacancy.waits:
            return True
        election = self._election
        if election is None or election.is_leader:
            return filled
        return election.holder not in ("", election.identity)


def _election_namespace(
    settings: ReplicaSettings, source: AccessSource, environ: Mapping[str, str]
) -> str:
    said = settings.leader_election_namespace or environ.get(ENV_POD_NAMESPACE, "")
    if said:
        return said
    if isinstance(source, InClusterAccess):
        return source.current().namespace
    # A guess could differ from that of another replica, and then both would lead.
    raise ConfigError(
        f"is required outside of a pod, unless {ENV_POD_NAMESPACE} is set",
        source="--leader-election-namespace",
    )
