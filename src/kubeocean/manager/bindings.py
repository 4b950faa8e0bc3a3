"""The controller of ClusterBindings: validation, rollout, status and deletion.

A reconcile reads caches, decides (`status`), and writes the difference. A reconcile never sends a
request to a worker: the probe of each binding does, so that an unreachable worker delays no other
binding. Running objects are not deleted because a binding has become invalid.

The manager writes `Ready`, `Permitted`, `SyncerReady` and `ProxierReady`. The manager writes
`Connected` only while no syncer leads; the leading syncer writes that condition otherwise. Whether
a syncer leads is read from its Deployment and Lease, and only if the status and the probe disagree.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import datetime
from typing import Final

from kubeocean.api.bindings import CLUSTER_BINDINGS, ClusterBinding
from kubeocean.api.conditions import BindingEvent
from kubeocean.api.group import DEFAULT, Domain
from kubeocean.errors import NotFound
from kubeocean.manager.deletion import DEADLINE_S, BindingDeletion
from kubeocean.manager.metrics import ManagerMetrics
from kubeocean.manager.rollout import Rollout
from kubeocean.manager.rollout_state import RolloutResult
from kubeocean.manager.secret_grants import kubeconfig_namespaces_of
from kubeocean.manager.status import (
    BindingObservation,
    StatusWriter,
    cluster_id_prefixes,
    contradicts,
    problems_of_binding,
    rolled_out,
    status_of,
)
from kubeocean.manager.syncer_leader import RECHECK_S, SyncerLeaders
from kubeocean.manager.worker_probe import REVIEW_S, ProbeContext, ProbeResult, WorkerProbes
from kubeocean.runtime.client import Client
from kubeocean.runtime.clock import Clock, RealClock, text_of
from kubeocean.runtime.controller import After, Controller, Done, Outcome
from kubeocean.runtime.events import EventRecorder, EventType
from kubeocean.runtime.informer import Informer
from kubeocean.runtime.logs import AUDIT_LOGGER, get_logger
from kubeocean.runtime.metrics import Metrics
from kubeocean.runtime.objects import Json, Key
from kubeocean.runtime.transport import Transport
from kubeocean.worker_access.credentials import SecretAccess
from kubeocean.worker_access.identity import OLDEST

__all__ = ["Bindings"]

_WORKERS: Final = 5  # a reconcile waits for the computing cluster only
_RETRY_S: Final = 60.0  # the change that a failed rollout needs may send no event
_BY_CLUSTER_ID: Final = "cluster-id"
_BY_PREFIX: Final = "cluster-id-prefix"

_audit = get_logger(AUDIT_LOGGER)


class Bindings:
    """Reconciles all ClusterBindings; `connect` returns the transport to a worker."""

    def __init__(
        self,
        client: Client,
        rollout: Rollout,
        events: EventRecorder,
        connect: Callable[[SecretAccess], Transport],
        *,
        domain: Domain = DEFAULT,
        deadline_s: float = DEADLINE_S,
        review_s: float = REVIEW_S,
        clock: Clock | None = None,
        metrics: Metrics | None = None,
    ) -> None:
        clock, metrics = clock or RealClock(), metrics or Metrics()
        self._client, self._rollout, self._domain, self._clock = client, rollout, domain, clock
        self.informer: Informer[ClusterBinding] = Informer(
            client,
            CLUSTER_BINDINGS,
            indexes={
                _BY_CLUSTER_ID: lambda binding: (binding.spec.cluster_id,),
                _BY_PREFIX: lambda binding: cluster_id_prefixes(binding.spec.cluster_id),
            },
            clock=clock,
            metrics=metrics,
        )
        self._statuses = StatusWriter(client, self.informer, events)
        self._leaders = SyncerLeaders(
            client, homes=rollout.syncer_homes, domain=domain, clock=clock
        )
        self._deletion = BindingDeletion(
            client,
            self._statuses,
            rollout,
            self._leaders,
            self.informer.items,
            domain=domain,
            clock=clock,
            deadline_s=deadline_s,
        )
        self.probes = WorkerProbes(
            ProbeContext(
                computing=client,
                connect=connect,
                listener=self,
                domain=domain,
                review_s=review_s,
                clock=clock,
                metrics=metrics,
            )
        )
        self.metrics = ManagerMetrics(metrics, self.informer)
        self.controller: Controller[Key] = Controller(
            "clusterbinding",
            self.reconcile,
            workers=_WORKERS,
            gate=self.informer.caught_up,
            clock=clock,
            metrics=metrics,
        )
        self._subscribe()

    def _subscribe(self) -> None:
        self._rollout.reserve(
            lambda: set(kubeconfig_namespaces_of(self.informer.items(), self._domain))
        )
        self.informer.on_change(self._changed)
        self._rollout.on_change(self.controller.enqueue)
        self._rollout.on_templates(lambda: self._enqueue(self.informer.items()))

    def _changed(self, old: ClusterBinding | None, new: ClusterBinding | None) -> None:
        for binding in (old, new):
            if binding is not None:
                self.controller.enqueue(binding.key)
        if old is not None and (new is None or new.uid != old.uid):
            # A watch may show a deletion and a new binding of the same name as one change.
            self.probes.drop(old.uid)
        if new is not None and self._namespaces_of(new) - self._namespaces_of(old):
            # Syncers of other bindings may not read Secrets there any more.
            self._enqueue(self.informer.items())
        if old is not None and new is None:
            self.metrics.forget(old.name)
            # A binding that was invalid because of this one may be valid now.
            self._enqueue(self._overlapping(old.spec.cluster_id))
        elif old is not None and new is not None and old.spec.cluster_id != new.spec.cluster_id:
            self._enqueue(self._overlapping(old.spec.cluster_id))
            self._enqueue(self._overlapping(new.spec.cluster_id))

    def _namespaces_of(self, binding: ClusterBinding | None) -> set[str]:
        """Return the namespaces of a binding's kubeconfig and certificate, but Kubeocean's own."""
        named = kubeconfig_namespaces_of((binding,) if binding is not None else (), self._domain)
        return set(named) - {"", self._domain.system_namespace}

    def _overlapping(self, cluster_id: str) -> list[ClusterBinding]:
        """Return the bindings whose virtual nodes could have the same names as those of
        `cluster_id`.
        """
        longer = self.informer.by(_BY_PREFIX, cluster_id)
        shorter = cluster_id_prefixes(cluster_id)[:-1]
        return [
            *longer,
            *(each for prefix in shorter for each in self.informer.by(_BY_CLUSTER_ID, prefix)),
        ]

    def _enqueue(self, bindings: Iterable[ClusterBinding]) -> None:
        for binding in list(bindings):
            self.controller.enqueue(binding.key)

    # ProbeListener

    def result_changed(self, binding: Key) -> None:
        """Enqueue a binding whose probe has another result than before."""
        self.controller.enqueue(binding)

    def kubeconfig_rotated(self, binding: Key, server: str) -> None:
        """Emit an event after the Secret of a binding changed."""
        message = f"The Secret holds another kubeconfig for {server}; it is used from now on"
        self._emit(binding, "Normal", BindingEvent.KUBECONFIG_ROTATED, message)
        _audit.info("Loaded new worker credentials", binding=binding.name, server=server)

    def credential_renewed(self, binding: Key, ends: datetime) -> None:
        """Emit an event after the credential of a binding was renewed."""
        message = f"Renewed the credential of the worker; the new one expires at {text_of(ends)}"
        self._emit(binding, "Normal", BindingEvent.CREDENTIAL_RENEWED, message)

    def namespace_created(self, binding: Key, namespace: str) -> None:
        """Emit an event after the mount namespace was created."""
        message = f"Created namespace {namespace} in the worker cluster"
        self._emit(binding, "Normal", BindingEvent.MOUNT_NAMESPACE_CREATED, message)
        _audit.info("Created mount namespace", binding=binding.name, namespace=namespace)

    def worker_too_old(self, binding: Key, version: str) -> None:
        """Emit a warning that the worker's version is not supported."""
        oldest = ".".join(map(str, OLDEST))
        message = f"The worker runs Kubernetes {version}; versions before {oldest} are not tested"
        self._emit(binding, "Warning", BindingEvent.WORKER_TOO_OLD, message)

    def _emit(self, key: Key, type_: EventType, reason: BindingEvent, message: str) -> None:
        binding = self.informer.get(key)
        if binding is not None:
            self._statuses.emit(binding, type_, reason, message)

    async def reconcile(self, key: Key) -> Outcome:
        """Reconcile one binding, and record the duration and the result."""
        binding = self.informer.get(key)
        if binding is None:
            return Done()
        began, failed = self._clock.monotonic(), True
        try:
            outcome = await self._reconcile(binding)
            failed = False
        finally:
            self.metrics.reconciled(binding.name, self._clock.monotonic() - began, failed=failed)
            if self.informer.get(key) is None:
                self.metrics.forget(binding.name)  # deleted during this reconcile
        return outcome

    async def _reconcile(self, binding: ClusterBinding) -> Outcome:
        if binding.deleting:
            return await self._deletion.reconcile(binding)
        binding = await self._add_finalizer(binding)
        if not self._is_cached(binding):
            return Done()
        # No await from here to `follow`: the probe of a deleted binding would never be dropped.
        wrong = problems_of_binding(binding, self._overlapping(binding.spec.cluster_id))
        if wrong:
            self.probes.drop(binding.uid)
            await self._write(BindingObservation(binding=binding, wrong=wrong))
            return Done()
        probe = self.probes.follow(binding)
        rollout = await self._roll_out(binding, probe)
        contradicted = probe is not None and contradicts(binding, probe)
        leads = contradicted and await self._syncer_leads(binding, rollout)
        await self._write(
            BindingObservation(binding=binding, probe=probe, rollout=rollout, leads=leads)
        )
        if contradicted and leads:
            return After(RECHECK_S)  # until manager and syncer agree
        waits = rollout is not None and (rollout.failed or rollout.secret_namespaces.refused)
        return After(_RETRY_S) if waits else Done()

    def _is_cached(self, binding: ClusterBinding) -> bool:
        cached = self.informer.get(binding.key)
        return cached is not None and cached.uid == binding.uid

    async def _add_finalizer(self, binding: ClusterBinding) -> ClusterBinding:
        """Add the manager's finalizer; return the binding as written."""
        finalizers, ours = binding.metadata.finalizers or (), self._domain.finalizer_manager
        if ours in finalizers:
            return binding
        binding = await self._statuses.finalize(binding, [*finalizers, ours])
        _audit.info(
            "Bound cluster",
            binding=binding.name,
            uid=binding.uid,
            cluster_id=binding.spec.cluster_id,
            mount_namespace=binding.spec.mount_namespace,
            created_at=binding.metadata.creation_timestamp,
            by=await self._authors(binding),
        )
        return binding

    async def _authors(self, binding: ClusterBinding) -> list[str]:
        """Return the field managers of the binding.

        These name programs; the users are in the audit log of the API server.
        """
        try:
            raw = await self._client.get(CLUSTER_BINDINGS, binding.name, keep_raw=True)
        except NotFound:
            return []
        fields: list[Json] = raw.content()["metadata"].get("managedFields", [])
        ours = self._client.field_manager
        return sorted({each.get("manager", "") for each in fields} - {ours})

    async def _roll_out(
        self, binding: ClusterBinding, probe: ProbeResult | None
    ) -> RolloutResult | None:
        """Apply the binding's objects, if its worker passed the probe or they were applied before.

        Objects of the earlier implementation stay unchanged until the worker passes.
        """
        fit = probe is not None and probe.fit
        if not fit and not rolled_out(binding):
            return None
        rollout = await self._rollout.ensure(binding)
        if rollout.written:
            message = f"Created or changed: {', '.join(rollout.written)}"
            self._statuses.emit(binding, "Normal", BindingEvent.ROLLED_OUT, message)
            _audit.info(
                "Rolled out binding",
                binding=binding.name,
                written=rollout.written,
                adopted=rollout.adopted,
            )
        return rollout

    async def _syncer_leads(self, binding: ClusterBinding, rollout: RolloutResult | None) -> bool:
        if self._domain.finalizer_syncer not in (binding.metadata.finalizers or ()):
            return False  # no syncer has led yet
        if rollout is not None and rollout.syncer.ready:
            return True  # its Lease may have a name that the manager does not know
        return (await self._leaders.of(binding)).leads

    async def _write(self, observation: BindingObservation) -> None:
        status = status_of(observation, now=text_of(self._clock.now()))
        await self._statuses.write(observation.binding, status)
