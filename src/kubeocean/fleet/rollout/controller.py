"""The controller of rollouts: releases the latest resource snapshots to bindings.

The controller writes the release and the apply strategy into the spec of bindings, deletes
Unscheduled bindings, and sets the condition RolloutStarted of bindings that have to wait to False.
The controller of Works sets the condition to True together with the other conditions of a release.
"""

from __future__ import annotations

from functools import partial
from typing import Final

import msgspec

from kubeocean.api.fleet.bindings import Binding
from kubeocean.api.fleet.conditions import NO_OVERRIDES, ROLLOUT_STARTED
from kubeocean.api.fleet.kinds import scope_of
from kubeocean.api.fleet.placements import Placement
from kubeocean.api.fleet.strategies import RollingUpdate, RolloutStrategyType
from kubeocean.fleet.caches import HubCaches, parent_of
from kubeocean.fleet.metrics import measured
from kubeocean.fleet.rollout.plan import (
    Release,
    plan,
    release_patch,
    strategy_patch,
    target_number,
)
from kubeocean.fleet.snapshots.plan import usable_group
from kubeocean.fleet.writes import delete, in_parallel, write_status
from kubeocean.runtime.client import Client, MergePatch
from kubeocean.runtime.clock import Clock, RealClock, text_of
from kubeocean.runtime.controller import After, Controller, Done, Outcome
from kubeocean.runtime.metrics import Metrics
from kubeocean.runtime.objects import Condition, Json, Key, Object, set_condition

__all__ = ["PlacementRollout"]

_NAME: Final = "fleet-rollout"
_WORKERS: Final = 8
_HELD: Final = "The limits of the rolling update do not allow this cluster yet"
_STARTED: Final = "The rollout has started"


class PlacementRollout:
    """Reconciles the releases of ClusterResourcePlacements and ResourcePlacements."""

    def __init__(
        self,
        client: Client,
        caches: HubCaches,
        *,
        clock: Clock | None = None,
        metrics: Metrics | None = None,
    ) -> None:
        self._client, self._caches = client, caches
        self._clock = clock or RealClock()
        self.controller: Controller[Key] = Controller(
            _NAME,
            measured(_NAME, _WORKERS, self.reconcile, metrics, self._clock),
            workers=_WORKERS,
            gate=caches.gate(
                caches.placements.caught_up,
                caches.resource_snapshots.caught_up,
                caches.bindings.caught_up,
            ),
            clock=self._clock,
            metrics=metrics,
        )
        caches.placements.on_change(self._placement_changed)
        caches.resource_snapshots.on_change(self._child_changed)
        caches.bindings.on_change(self._child_changed)

    def _placement_changed(self, old: Placement | None, new: Placement | None) -> None:
        if new is not None and (old is None or old.spec != new.spec):
            self.controller.enqueue(new.key)

    def _child_changed(self, old: Object | None, new: Object | None) -> None:
        subject = new if new is not None else old
        if subject is not None and (placement := parent_of(subject)) is not None:
            self.controller.enqueue(placement)

    async def reconcile(self, key: Key) -> Outcome:
        """Update, hold back and delete the bindings of one placement."""
        placement = self._caches.placements.get(key)
        if placement is None or placement.deleting:
            return Done()
        strategy = placement.spec.strategy
        if strategy.type == RolloutStrategyType.EXTERNAL:
            return Done()
        bindings = self._caches.bindings.of(key)
        others = [
            binding
            for binding in bindings
            if not binding.deleting and binding.spec.apply_strategy != strategy.apply_strategy
        ]
        if others:
            await self._push_strategy(placement, others)
            return Done()  # events of the patched bindings follow
        group = usable_group(self._caches.resource_snapshots.of(key))
        if group is None or group.master is None:
            return Done()
        release = Release(group.master.name)
        decided = plan(
            bindings,
            target_number(placement, bindings),
            release,
            strategy.rolling_update or RollingUpdate(),
            self._clock.now(),
        )

        async def release_one(binding: Binding) -> None:
            body = release_patch(binding, release, strategy.apply_strategy)
            await self._patch(placement, binding, body)

        async def remove_one(binding: Binding) -> None:
            if await delete(self._client, scope_of(key).bindings, binding):
                self._caches.bindings.deleted(binding)

        await in_parallel(release_one, decided.release)
        await in_parallel(remove_one, decided.remove)
        reason = ROLLOUT_STARTED.cluster
        hold = partial(self._set_started, placement, "False", reason.false, _HELD)
        keep = partial(self._set_started, placement, "False", reason.false, NO_OVERRIDES)
        confirm = partial(self._set_started, placement, "True", reason.true, _STARTED)
        await in_parallel(hold, decided.hold)
        await in_parallel(keep, decided.overridden)
        await in_parallel(confirm, decided.confirm)
        return Done() if decided.again_s is None else After(decided.again_s)

    async def _push_strategy(self, placement: Placement, bindings: list[Binding]) -> None:
        async def push(binding: Binding) -> None:
            body = strategy_patch(binding, placement.spec.strategy.apply_strategy)
            await self._patch(placement, binding, body)

        await in_parallel(push, bindings)

    async def _patch(self, placement: Placement, binding: Binding, body: Json) -> None:
        resource = scope_of(placement.key).bindings
        written = await self._client.patch(
            resource, binding.name, MergePatch(body), binding.namespace
        )
        self._caches.bindings.wrote(written)

    async def _set_started(
        self, placement: Placement, status: str, reason: str, message: str, binding: Binding
    ) -> None:
        condition = Condition(
            ROLLOUT_STARTED.name,
            status,
            reason,
            message,
            observed_generation=binding.metadata.generation,
        )
        now = text_of(self._clock.now())
        conditions = set_condition(binding.status.conditions, condition, now=now)
        new = msgspec.structs.replace(binding.status, conditions=conditions)
        written = await write_status(self._client, scope_of(placement.key).bindings, binding, new)
        if written is not None:
            self._caches.bindings.wrote(written)
