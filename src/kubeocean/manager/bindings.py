"""The bindings, as the manager sees them: validated, rolled out, told of, and led to their end.

A turn reads what is known, decides (`verdicts`), and writes the difference. It never talks to a
worker: that is for the pulse of each binding, which has all the time it needs, so a worker that is
dead slows nobody. Nothing that runs is taken away because something is wrong now.

`Ready`, `Permitted`, `SyncerReady` and `ProxierReady` are ours. `Connected` is the syncer's while
one is at work (its Deployment or its Lease says so, and is asked only if we disagree), and ours
while none is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from kubeocean.api.binding import CLUSTER_BINDINGS, ClusterBinding
from kubeocean.api.group import DEFAULT, Domain
from kubeocean.api.reasons import BindingEvent
from kubeocean.bound.workers import SecretAccess
from kubeocean.errors import NotFound
from kubeocean.leasing.instants import text_of
from kubeocean.manager.endings import DEADLINE_S
from kubeocean.manager.figures import Figures
from kubeocean.manager.findings import OLDEST, Finding
from kubeocean.manager.leaders import LOOK_AGAIN_S, Leaders
from kubeocean.manager.pulses import REVIEW_S, Pulses, Surroundings
from kubeocean.manager.rollout import Rollout
from kubeocean.manager.rolloutviews import Rolled
from kubeocean.manager.statuses import Statuses
from kubeocean.manager.unbinding import Unbinding
from kubeocean.manager.verdicts import Seen, contradicts, rolled_out, status_of, wrong_with
from kubeocean.runtime.client import Client
from kubeocean.runtime.clock import Clock, RealClock
from kubeocean.runtime.controller import Controller
from kubeocean.runtime.correlator import EventType
from kubeocean.runtime.events import EventRecorder
from kubeocean.runtime.informer import Informer
from kubeocean.runtime.logs import get_logger
from kubeocean.runtime.metrics import Metrics
from kubeocean.runtime.objects import Json, Key
from kubeocean.runtime.outcomes import After, Done, Outcome
from kubeocean.runtime.transport import Transport

__all__ = ["Bindings"]

_WORKERS: Final = 5  # as ever; a turn waits for the computing cluster only
_TRY_AGAIN_S: Final = 60.0  # what somebody has to change may send us no event
_BY_CLUSTER_ID: Final = "cluster-id"

_audit = get_logger("kubeocean.audit")


class Bindings:
    """All bindings; a key is a name. `connect` gives the way to a worker."""

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
            indexes={_BY_CLUSTER_ID: lambda binding: (binding.spec.cluster_id,)},
            clock=clock,
            metrics=metrics,
        )
        self._statuses = Statuses(client, self.informer, events)
        self._leaders = Leaders(client, homes=rollout.syncer_homes, domain=domain, clock=clock)
        self._unbinding = Unbinding(
            client,
            self._statuses,
            rollout,
            self._leaders,
            self.informer.items,
            domain=domain,
            clock=clock,
            deadline_s=deadline_s,
        )
        self.pulses = Pulses(
            Surroundings(
                computing=client,
                connect=connect,
                told=self,
                domain=domain,
                review_s=review_s,
                clock=clock,
                metrics=metrics,
            )
        )
        self.figures = Figures(metrics, self.informer)
        self.controller: Controller[Key] = Controller(
            "clusterbinding",
            self.reconcile,
            workers=_WORKERS,
            gate=self.informer.caught_up,
            clock=clock,
            metrics=metrics,
        )
        self._follow()

    # What makes us look

    def _follow(self) -> None:
        self.informer.on_change(self._changed)
        self._rollout.on_change(self.controller.enqueue)
        self._rollout.on_templates(lambda: self._enqueue(self.informer.items()))

    def _changed(self, old: ClusterBinding | None, new: ClusterBinding | None) -> None:
        for each in (old, new):
            if each is not None:
                self.controller.enqueue(each.key)
        if old is not None and (new is None or new.uid != old.uid):
            # One of that name may have come in its place while nobody looked.
            self.pulses.drop(old.uid)
        if old is not None and new is None:
            self.figures.forget(old.name)
            # Who had to stand back for it may go ahead.
            self._enqueue(self.informer.by(_BY_CLUSTER_ID, old.spec.cluster_id))
        elif old is not None and new is not None and old.spec.cluster_id != new.spec.cluster_id:
            self._enqueue(self.informer.by(_BY_CLUSTER_ID, old.spec.cluster_id))
            self._enqueue(self.informer.by(_BY_CLUSTER_ID, new.spec.cluster_id))

    def _enqueue(self, bindings: Iterable[ClusterBinding]) -> None:
        for each in list(bindings):
            self.controller.enqueue(each.key)

    # What pulses tell

    def found(self, binding: Key) -> None:
        """There is another finding of a worker."""
        self.controller.enqueue(binding)

    def rotated(self, binding: Key, server: str) -> None:
        """A Secret holds another kubeconfig than before."""
        message = f"The Secret holds another kubeconfig for {server}; it is used from now on"
        self._tell(binding, "Normal", BindingEvent.KUBECONFIG_ROTATED, message)
        _audit.info("Took new worker credentials", binding=binding.name, server=server)

    def namespace_created(self, binding: Key, namespace: str) -> None:
        """A mount namespace was not there, and is now."""
        message = f"The worker had no namespace {namespace}, and has one now"
        self._tell(binding, "Normal", BindingEvent.MOUNT_NAMESPACE_CREATED, message)
        _audit.info("Created mount namespace", binding=binding.name, namespace=namespace)

    def too_old(self, binding: Key, version: str) -> None:
        """A worker is older than what is known to work."""
        oldest = ".".join(map(str, OLDEST))
        message = f"The worker runs Kubernetes {version}; nothing before {oldest} was ever tried"
        self._tell(binding, "Warning", BindingEvent.WORKER_TOO_OLD, message)

    def _tell(self, key: Key, type_: EventType, reason: BindingEvent, message: str) -> None:
        binding = self.informer.get(key)
        if binding is not None:
            self._statuses.emit(binding, type_, reason, message)

    # A turn

    async def reconcile(self, key: Key) -> Outcome:
        binding = self.informer.get(key)
        if binding is None:
            return Done()
        began, failed = self._clock.monotonic(), True
        try:
            outcome = await self._turn(binding)
            failed = False
        finally:
            self.figures.turn(binding.name, self._clock.monotonic() - began, failed=failed)
            if self.informer.get(key) is None:
                self.figures.forget(binding.name)  # it went during its turn
        return outcome

    async def _turn(self, binding: ClusterBinding) -> Outcome:
        if binding.deleting:
            return await self._unbinding.end(binding)
        binding = await self._hold(binding)
        if not self._is_known(binding):
            return Done()
        # No await from here to `follow`: nobody would end the pulse of one that is gone.
        wrong = wrong_with(binding, self.informer.by(_BY_CLUSTER_ID, binding.spec.cluster_id))
        if wrong:
            self.pulses.drop(binding.uid)
            await self._write(Seen(binding=binding, wrong=wrong))
            return Done()
        finding = self.pulses.follow(binding)
        rolled = await self._ensure(binding, finding)
        contradicted = finding is not None and contradicts(binding, finding)
        leads = contradicted and await self._leads(binding, rolled)
        await self._write(Seen(binding=binding, finding=finding, rolled=rolled, leads=leads))
        if contradicted and leads:
            return After(LOOK_AGAIN_S)  # until one of us is right
        return After(_TRY_AGAIN_S) if rolled is not None and rolled.failed else Done()

    def _is_known(self, binding: ClusterBinding) -> bool:
        """Whether it did not go while we were at it."""
        there = self.informer.get(binding.key)
        return there is not None and there.uid == binding.uid

    async def _hold(self, binding: ClusterBinding) -> ClusterBinding:
        """See to it that the binding cannot go without us."""
        held, ours = binding.metadata.finalizers or (), self._domain.finalizer_manager
        if ours in held:
            return binding
        binding = await self._statuses.finalize(binding, [*held, ours])
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
        """Who wrote the binding, as far as it knows: programs, not people, who are in the audit log
        of the API server."""
        try:
            found = await self._client.get(CLUSTER_BINDINGS, binding.name, keep_raw=True)
        except NotFound:
            return []
        fields: list[Json] = found.content()["metadata"].get("managedFields", [])
        ours = self._client.field_manager
        return sorted({each.get("manager", "") for each in fields} - {ours})

    async def _ensure(self, binding: ClusterBinding, finding: Finding | None) -> Rolled | None:
        """Roll out where a syncer could work, and keep what was rolled out before. What the earlier
        implementation runs is left as it is until its credential is good for ours."""
        fit = finding is not None and finding.fit
        if not fit and not rolled_out(binding):
            return None
        rolled = await self._rollout.ensure(binding)
        if rolled.written:
            message = f"Made or changed: {', '.join(rolled.written)}"
            self._statuses.emit(binding, "Normal", BindingEvent.ROLLED_OUT, message)
            _audit.info(
                "Rolled out binding",
                binding=binding.name,
                written=rolled.written,
                adopted=rolled.adopted,
            )
        return rolled

    async def _leads(self, binding: ClusterBinding, rolled: Rolled | None) -> bool:
        if self._domain.finalizer_syncer not in (binding.metadata.finalizers or ()):
            return False  # none ever did
        if rolled is not None and rolled.syncer.ready:
            return True  # whatever its Lease is called
        return (await self._leaders.of(binding)).leads

    async def _write(self, seen: Seen) -> None:
        wanted = status_of(seen, now=text_of(self._clock.now()))
        await self._statuses.write(seen.binding, wanted)
