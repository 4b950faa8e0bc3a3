"""Replicas of a process: which of them work, and when they may write.

Replicas compete for a Lease; the leader works alone, the other replicas wait and are ready. A
replica that loses the Lease ends. With `--sharding` all replicas work, each on its slots. With
neither, every replica works.

A leader that works alone begins when no replica with `--sharding` is left. A `fenced` transport
checks the election or the ring before each write.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, suppress

from kubeocean.api.group import ENV_POD_NAMESPACE
from kubeocean.errors import ConfigError
from kubeocean.process.settings import ReplicaSettings
from kubeocean.process.startup import MANAGEMENT, management_access, open_client, trace
from kubeocean.runtime.access import Access
from kubeocean.runtime.answer_budget import AnswerBudget
from kubeocean.runtime.audit import AuditTransport
from kubeocean.runtime.client import Client
from kubeocean.runtime.credentials import AccessSource, InClusterAccess, default_access
from kubeocean.runtime.election import Election, LeadershipLost, unique_identity
from kubeocean.runtime.metrics import Metrics
from kubeocean.runtime.transport import HttpTransport, Transport
from kubeocean.runtime.transport_layers import CountedTransport, FencedTransport, RecoveryTransport
from kubeocean.sharding.exclusive_start import ExclusiveStart
from kubeocean.sharding.ring import Ring
from kubeocean.sharding.shared_controllers import SharedControllers

__all__ = ["Replica"]


class Replica:
    """Replica of a process: its clients, and its leader election or sharding, by its settings.

    - `stack`: closes the clients.
    - `prepared`: returns when the caches are filled enough to work on a slot.
    - `control`: a client of the cluster with the Lease, without rate limit and fence.
    - `cluster`: name of that cluster in logs and metrics.
    - `sharing`: the controllers of `--sharding`; its ring is a component of the service.

    :raises KubeoceanError: the access to the cluster, or the namespace of the Lease, is not known.
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
        cluster: str = "computing",
    ) -> None:
        self.identity = unique_identity()
        trace(stack, service, instance=self.identity, environ=environ)
        self._source = source = default_access(
            settings.kubeconfig or None, environ=environ, allow_exec=settings.allow_exec_plugins
        )
        self._stack = stack
        self._environ = environ
        self._metrics = metrics
        self._cluster = cluster
        self._recovery_handlers: list[Callable[[], None]] = []
        self._actor = f"{service}/{self.identity}"
        transport = self.observed(source, cluster)
        self.control = control = open_client(stack, transport, cluster)
        self.sharing: SharedControllers | None = None
        self._election: Election | None = None
        self._exclusive_start: ExclusiveStart | None = None
        if not settings.sharding and not settings.leader_elect:
            return
        namespace = _election_namespace(settings, source, environ)
        config = settings.ring(namespace)
        if settings.sharding:
            ring = Ring(control, config, metrics=metrics, environ=environ)
            self.sharing = SharedControllers(ring, prepared=prepared)
            return
        self._exclusive_start = ExclusiveStart(control, config)
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
        """Return a fenced and rate-limited client of the cluster with the Lease."""
        observed = self.observed(self._source, self._cluster)
        transport = RecoveryTransport(observed, cluster=self._cluster)
        transport.on_recovery(self._recovered)
        fenced = self.fenced(transport)
        return open_client(self._stack, fenced, self._cluster, qps=qps, burst=burst)

    def management_client(self, kubeconfig: str) -> Client | None:
        """A fenced client of the management cluster; None if programs run in the computing one.

        :raises ConfigError: the kubeconfig, or the pod's account, cannot be read.
        """
        if not kubeconfig:
            return None
        transport = self.fenced(self._to_management(kubeconfig))
        return open_client(self._stack, transport, MANAGEMENT)

    def reviewer(self, management_kubeconfig: str) -> Client:
        """A client, without fence, of the cluster in which this program runs.

        That cluster authenticates the callers that read metrics.

        :raises ConfigError: the kubeconfig, or the pod's account, cannot be read.
        """
        if not management_kubeconfig:
            return self.control
        return open_client(self._stack, self._to_management(management_kubeconfig), MANAGEMENT)

    def _to_management(self, kubeconfig: str) -> Transport:
        return self.observed(management_access(kubeconfig, self._environ), MANAGEMENT)

    @property
    def access(self) -> Access:
        """Server and credentials in use for the cluster with the Lease."""
        return self._source.current()

    def on_recovery(self, handler: Callable[[], None]) -> None:
        """Call `handler` when the cluster with the Lease serves again after an outage."""
        self._recovery_handlers.append(handler)

    def _recovered(self) -> None:
        for handler in self._recovery_handlers:
            handler()

    def observed(
        self,
        source: AccessSource,
        cluster: str,
        *,
        largest: int | None = None,
        answers: AnswerBudget | None = None,
    ) -> Transport:
        """Return a transport that counts its requests and bytes, and audits its writes; it refuses
        answers of more than `largest` bytes, and `answers` limits incomplete ones together."""
        transport = HttpTransport(source, largest=largest, answers=answers)
        counted = CountedTransport(transport, source, self._metrics, cluster=cluster)
        return self.audited(counted, cluster)

    def audited(self, transport: Transport, cluster: str) -> Transport:
        """Return a transport that writes an audit log line for each write."""
        return AuditTransport(transport, cluster=cluster, actor=self._actor)

    def fenced(self, transport: Transport) -> Transport:
        """Return a transport that writes only while this replica is leader, or owns its shards."""
        fence = self._election or self.sharing
        return FencedTransport(transport, fence.check) if fence else transport

    async def run(self, work: Callable[[], Awaitable[None]]) -> None:
        """Run `work` while this replica leads, or at once without an election; return when `work`
        ends or leadership is lost."""
        election, exclusive_start = self._election, self._exclusive_start
        if election is None or exclusive_start is None:
            await work()
            return

        async def lead() -> None:
            await exclusive_start.wait()
            await work()

        # The election has logged the reason of the loss; the service ends with this component.
        with suppress(LeadershipLost):
            await election.run(lead)

    def ready(self, filled: bool) -> bool:
        """Whether this replica is ready: a leader when its caches are `filled`, another replica
        when it knows the leader.

        A leader that waits for replicas with `--sharding` is ready: a rollout ends those replicas
        only then.
        """
        if self._exclusive_start is not None and self._exclusive_start.waits:
            return True
        election = self._election
        if election is None or election.is_leader:
            return filled
        return election.holder not in ("", election.identity)


def _election_namespace(
    settings: ReplicaSettings, source: AccessSource, environ: Mapping[str, str]
) -> str:
    namespace = settings.leader_election_namespace or environ.get(ENV_POD_NAMESPACE, "")
    if namespace:
        return namespace
    if isinstance(source, InClusterAccess):
        return source.current().namespace
    # A guess could differ from that of another replica, and both replicas would lead.
    raise ConfigError(
        f"is required outside of a pod, unless {ENV_POD_NAMESPACE} is set",
        source="--leader-election-namespace",
    )
