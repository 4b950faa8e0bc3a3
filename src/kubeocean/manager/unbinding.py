"""Unbinding: a binding that is deleted, led to its end.

First its syncer, which takes back nodes and pods; then the objects of the rollout, syncer before
proxier before certificates; then, when its syncers have ended, the Lease of their election; then
our finalizer. Only what is provably of this very binding goes, so a binding that never was more
than a duplicate takes nothing with it.

`Ready` says what is waited for, and until when. Where nobody was there to confirm that all is
cleared up, virtual nodes are removed from here, `Drained` and an event say so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import datetime, timedelta
from typing import Final

from kubeocean.api import conditions as said
from kubeocean.api.binding import CLUSTER_BINDINGS, ClusterBinding
from kubeocean.api.group import Domain
from kubeocean.api.reasons import BindingEvent
from kubeocean.errors import ApiError, Forbidden, NotFound
from kubeocean.leasing.instants import text_of
from kubeocean.manager.endings import Go, Wait, decide, forced, left_behind
from kubeocean.manager.leaders import LOOK_AGAIN_S, Leader, Leaders
from kubeocean.manager.leavings import free_nodes, nodes_left
from kubeocean.manager.rollout import Rollout
from kubeocean.manager.statuses import Statuses, with_conditions
from kubeocean.manager.verdicts import rolled_out
from kubeocean.runtime.client import Client
from kubeocean.runtime.clock import Clock
from kubeocean.runtime.logs import get_logger
from kubeocean.runtime.objects import find_condition
from kubeocean.runtime.outcomes import After, Done, Outcome

__all__ = ["Unbinding"]

_LOOK_AGAIN_S: Final = 1.0
_ENDING_S: Final = 40.0  # for pods whose Deployment is gone: a kubelet kills them after 30
_FOREGROUND: Final = "foregroundDeletion"  # Kubernetes deletes what is owned, and would go on to

_log = get_logger(__name__)
_audit = get_logger("kubeocean.audit")


class Unbinding:
    """Ends bindings; `deadline_s` is how long one without a syncer at work is waited for, and
    `known` are all that there are."""

    def __init__(
        self,
        client: Client,
        statuses: Statuses,
        rollout: Rollout,
        leaders: Leaders,
        known: Callable[[], Iterable[ClusterBinding]],
        *,
        domain: Domain,
        clock: Clock,
        deadline_s: float,
    ) -> None:
        self._client = client
        self._statuses = statuses
        self._rollout = rollout
        self._leaders = leaders
        self._known = known
        self._ending: dict[str, float] = {}  # when nothing but pods was left, by the binding's UID
        self._domain = domain
        self._clock = clock
        self._deadline_s = deadline_s

    async def end(self, binding: ClusterBinding) -> Outcome:
        """One step towards the end."""
        held, domain = set(binding.metadata.finalizers or ()), self._domain
        if not held & {domain.finalizer_manager, domain.finalizer_syncer}:
            return Done()
        if not await self._is_there(binding):
            return Done()
        now, leader = self._clock.now(), Leader(False)
        if domain.finalizer_syncer in held and not forced(binding, domain):
            leader = await self._leader(binding)
        match decide(binding, leader, now=now, deadline_s=self._deadline_s, domain=domain):
            case Wait() as wait:
                await self._restore(binding)
                await self._tell(binding, wait.waits, now, BindingEvent.WAITING_SYNCER_CLEANUP)
                return After(_pause_s(wait, now))
            case Go(unconfirmed):
                return await self._go(binding, unconfirmed, now)

    async def _leader(self, binding: ClusterBinding) -> Leader:
        """Whether a syncer is at work, whatever its Lease is called."""
        if self._rollout.syncers_ready(binding):
            return Leader(True)
        return await self._leaders.of(binding)

    async def _restore(self, binding: ClusterBinding) -> None:
        """Make a syncer again that is gone while it is waited for: it has to clear up."""
        owned = _FOREGROUND in (binding.metadata.finalizers or ())
        if rolled_out(binding) and not owned:
            await self._rollout.ensure(binding)

    async def _go(self, binding: ClusterBinding, unconfirmed: str, now: datetime) -> Outcome:
        left, denied = [], ""
        try:
            left = await self._rollout.remove(binding)
        except ApiError as error:
            binding = await self._failed(binding, error, now)
            if not (isinstance(error, Forbidden) and self._may_leave(binding, now)):
                raise
            denied = str(error)
            unconfirmed = f"{unconfirmed}; {denied}" if unconfirmed else denied
        if left and not self._may_leave(binding, now):
            waits = f"still there: {', '.join(left)}"
            await self._tell(binding, waits, now, BindingEvent.CLEANUP_IN_PROGRESS)
            return After(_LOOK_AGAIN_S)
        if not denied and (held := await self._still_held(binding, now)):
            waits = f"a syncer that ends still holds {held}"
            await self._tell(binding, waits, now, BindingEvent.CLEANUP_IN_PROGRESS)
            return After(_LOOK_AGAIN_S)
        # Its syncer is gone: who has not held it, or let go of it too early, does so no more.
        if not unconfirmed and await nodes_left(self._client, binding, self._domain):
            unconfirmed = "no syncer held the binding, and there are virtual nodes of it"
        if unconfirmed:
            binding = await self._confess(binding, unconfirmed, now)
        if not denied:
            message = "Syncer, proxier and certificates of the binding are removed"
            self._statuses.emit(binding, "Normal", BindingEvent.CLEANUP, message)
        await self._let_go(binding, unconfirmed)
        return Done()

    async def _still_held(self, binding: ClusterBinding, now: datetime) -> str:
        """Remove the Leases of its syncers; one that is worth waiting for. Who goes on although its
        Deployment is gone is nobody that we have started, and keeps it."""
        held = await self._leaders.remove(binding, self._known())
        since = self._ending.setdefault(binding.uid, self._clock.monotonic())
        late = self._clock.monotonic() - since >= _ENDING_S
        if not held or late or self._may_leave(binding, now):
            return ""
        return ", ".join(f"Lease {each}" for each in held)

    async def _is_there(self, binding: ClusterBinding) -> bool:
        """Whether it is not gone yet: a cache may show for a moment what we have let go of, which
        must not be told twice, nor rolled out again."""
        try:
            there = await self._client.get(CLUSTER_BINDINGS, binding.name)
        except NotFound:
            return False
        return there.uid == binding.uid

    def _may_leave(self, binding: ClusterBinding, now: datetime) -> bool:
        """Whether what is owned may outlive its owner for a while: Kubernetes collects it."""
        deleted = datetime.fromisoformat(binding.metadata.deletion_timestamp or text_of(now))
        late = now >= deleted + timedelta(seconds=self._deadline_s)
        return late or forced(binding, self._domain)

    async def _confess(
        self, binding: ClusterBinding, unconfirmed: str, now: datetime
    ) -> ClusterBinding:
        """Clear up what can be from here, and say what nobody has confirmed."""
        try:
            vnodes = await free_nodes(self._client, binding, self._domain)
        except ApiError as error:
            await self._failed(binding, error, now)
            raise
        left = f"{unconfirmed}; {left_behind(binding, vnodes, self._domain)}"
        deleted = datetime.fromisoformat(binding.metadata.deletion_timestamp or text_of(now))
        drained = said.DRAIN_UNCONFIRMED.condition(
            generation=binding.metadata.generation,
            after=max(round((now - deleted).total_seconds()), 0),
            remaining=left,
        )
        wanted = with_conditions(binding.status, [drained], now=text_of(now))
        self._warn(binding, BindingEvent.CLEANUP_UNCONFIRMED, f"Not confirmed gone: {left}")
        return await self._statuses.write(binding, wanted)

    async def _let_go(self, binding: ClusterBinding, unconfirmed: str) -> None:
        domain = self._domain
        ours = {domain.finalizer_manager, domain.finalizer_syncer}
        others = [each for each in binding.metadata.finalizers or () if each not in ours]
        await self._statuses.finalize(binding, others)
        self._statuses.emit(binding, "Normal", BindingEvent.DELETED, "The binding is gone")
        self._leaders.forget(binding)
        self._ending.pop(binding.uid, None)
        _audit.info(
            "Unbound cluster",
            binding=binding.name,
            uid=binding.uid,
            cluster_id=binding.spec.cluster_id,
            deleted_at=binding.metadata.deletion_timestamp,
            forced=forced(binding, domain),
            unconfirmed=unconfirmed,
        )

    # Telling

    async def _tell(
        self, binding: ClusterBinding, waits: str, now: datetime, event: BindingEvent
    ) -> None:
        before = find_condition(binding.status.conditions, said.READY)
        generation = binding.metadata.generation
        deleting = said.BINDING_DELETING.condition(generation=generation, waits=waits)
        if before is None or before.message != deleting.message:
            self._statuses.emit(binding, "Normal", event, deleting.message)
        wanted = with_conditions(binding.status, [deleting], now=text_of(now))
        await self._statuses.write(binding, wanted)

    async def _failed(
        self, binding: ClusterBinding, error: ApiError, now: datetime
    ) -> ClusterBinding:
        """Say what could not be done; who reads the binding may be able to grant the right."""
        self._warn(binding, BindingEvent.CLEANUP_FAILED, str(error))
        if not isinstance(error, Forbidden):
            return binding
        generation = binding.metadata.generation
        deleting = said.BINDING_DELETING.condition(generation=generation, waits=str(error))
        wanted = with_conditions(binding.status, [deleting], now=text_of(now))
        return await self._statuses.write(binding, wanted)

    def _warn(self, binding: ClusterBinding, reason: BindingEvent, message: str) -> None:
        _log.warning("Could not clear up after binding", binding=binding.name, error=message)
        self._statuses.emit(binding, "Warning", reason, message)


def _pause_s(wait: Wait, now: datetime) -> float:
    left_s = LOOK_AGAIN_S if wait.until is None else (wait.until - now).total_seconds()
    return min(max(left_s, _LOOK_AGAIN_S), LOOK_AGAIN_S)
