"""The controller of snapshots: selects the objects of a placement, and writes policy and resource
snapshots.

The controller also adds the finalizers of a placement, both in one patch, and drops its own when
all snapshots are gone. The result of a selection, an error of the user included, is kept in memory
for the controller that writes the status of placements.

The Controller gate holds a placement back until the caches show all writes for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final

from kubeocean.api.fleet import names
from kubeocean.api.fleet.conditions import SCHEDULED, PlacementReason
from kubeocean.api.fleet.kinds import scope_of
from kubeocean.api.fleet.placements import Placement, StatusReportingScope
from kubeocean.api.fleet.strategies import RolloutStrategyType
from kubeocean.errors import ApiError, ConfigError, Forbidden, NotFound
from kubeocean.fleet.caches import HubCaches, ScopedCache, parent_of
from kubeocean.fleet.metrics import measured
from kubeocean.fleet.selection.reader import SelectionReader
from kubeocean.fleet.selection.select import NAMESPACE
from kubeocean.fleet.snapshots.contents import SnapshotContents
from kubeocean.fleet.snapshots.documents import (
    SelectedContent,
    policy_document,
    resource_document,
    selected_content,
)
from kubeocean.fleet.snapshots.plan import (
    CompleteGroup,
    CreateGroup,
    Delays,
    ReuseGroup,
    WaitForChanges,
    latest_policy,
    plan_policy,
    plan_resources,
)
from kubeocean.fleet.writes import delete, finalizers_patch, in_parallel, in_thread, is_refusal
from kubeocean.runtime.client import Client, MergePatch
from kubeocean.runtime.clock import Clock, RealClock
from kubeocean.runtime.controller import After, Controller, Done, Outcome
from kubeocean.runtime.metrics import Metrics
from kubeocean.runtime.objects import (
    GroupVersionKind,
    Json,
    Key,
    Object,
    ObjectT,
    Resource,
    find_condition,
)

__all__ = ["SelectionResult", "Snapshots", "selected_namespace"]

_NAME: Final = "fleet-snapshots"
_WORKERS: Final = 8
_FINALIZERS: Final = (names.FINALIZER_PLACEMENT, names.FINALIZER_SCHEDULER)
_MANY_OBJECTS: Final = 200  # encoding more would block the event loop for too long
_USER_ERROR_S: Final = 1800.0  # until a selection with a mistake of the user is tried again


@dataclass(frozen=True, slots=True)
class SelectionResult:
    """Result of selecting objects for one generation of a placement; `error`: a user's mistake."""

    uid: str
    generation: int
    error: str = ""


class Snapshots:
    """Reconciles the snapshots of ClusterResourcePlacements and ResourcePlacements."""

    def __init__(
        self,
        client: Client,
        caches: HubCaches,
        reader: SelectionReader,
        contents: SnapshotContents,
        *,
        delays: Delays | None = None,
        clock: Clock | None = None,
        metrics: Metrics | None = None,
    ) -> None:
        self._client, self._caches, self._reader, self._contents = client, caches, reader, contents
        self._delays = delays or Delays()
        self._clock = clock or RealClock()
        self._results: dict[Key, SelectionResult] = {}
        self._handlers: list[Callable[[Key], None]] = []
        self.controller: Controller[Key] = Controller(
            _NAME,
            measured(_NAME, _WORKERS, self.reconcile, metrics, self._clock),
            workers=_WORKERS,
            gate=caches.gate(
                caches.placements.caught_up,
                caches.policy_snapshots.caught_up,
                caches.resource_snapshots.caught_up,
                caches.bindings.caught_up,
            ),
            clock=self._clock,
            metrics=metrics,
        )
        caches.placements.on_change(self._placement_changed)
        caches.policy_snapshots.on_change(self._snapshot_changed)
        caches.resource_snapshots.on_change(self._snapshot_changed)
        reader.on_change(self.controller.enqueue)

    def result(self, placement: Placement) -> SelectionResult | None:
        """Return the selection result for this generation of a placement; None if not known yet."""
        result = self._results.get(placement.key)
        version = placement.uid, placement.metadata.generation
        return result if result and (result.uid, result.generation) == version else None

    def on_result(self, handler: Callable[[Key], None]) -> None:
        """Call `handler` with the key of a placement whenever its selection result changes."""
        self._handlers.append(handler)

    def _placement_changed(self, old: Placement | None, new: Placement | None) -> None:
        if old is not None and new is not None and _version(old) == _version(new):
            return
        for placement in (old, new):
            if placement is not None:
                self.controller.enqueue(placement.key)

    def _snapshot_changed(self, old: Object | None, new: Object | None) -> None:
        """Enqueue the placement of a snapshot that was deleted or relabelled."""
        if old is not None and new is not None and _marks(old) == _marks(new):
            return
        for snapshot in (old, new):
            if snapshot is not None and (placement := parent_of(snapshot)) is not None:
                self.controller.enqueue(placement)

    async def reconcile(self, key: Key) -> Outcome:
        """Create, relabel and prune the snapshots of one placement, or delete them with it."""
        placement = self._caches.placements.get(key)
        if placement is None:
            self._reader.forget(key)
            self._results.pop(key, None)
            return Done()
        if placement.deleting:
            return await self._delete(placement)
        if not set(_FINALIZERS) <= set(placement.metadata.finalizers or ()):
            await self._add_finalizers(placement)
            return Done()  # an event of the patched placement follows
        try:
            _check_namespace(placement)
            objects = await self._reader.read(placement)
        except ConfigError as error:
            self._report(placement, str(error))
            return After(_USER_ERROR_S)
        except ApiError:
            if self.result(placement) is None and self._was_selected(placement):
                self._report(placement)  # the snapshots of an earlier leader hold until the retry
            raise
        content = await in_thread(
            lambda: selected_content(objects), many=len(objects) > _MANY_OBJECTS
        )
        outcome: Outcome = Done()
        if placement.spec.strategy.type != RolloutStrategyType.EXTERNAL:
            try:
                outcome = await self.ensure_resources(placement, content, self._delays)
            except (Forbidden, NotFound):
                raise  # a snapshot or its namespace is being deleted
            except ApiError as error:
                if not is_refusal(error):
                    raise
                self._report(placement, f"the selected objects cannot be stored: {error}")
                return After(_USER_ERROR_S)
        # Last: the scheduler gives new bindings the latest release that exists
        await self._ensure_policy(placement)
        self._report(placement)
        return outcome

    def _was_selected(self, placement: Placement) -> bool:
        """Whether an earlier leader has selected objects for this generation of a placement."""
        type_ = f"{scope_of(placement.key).prefix}{SCHEDULED.name}"
        scheduled = find_condition(placement.status.conditions, type_)
        if scheduled is None or scheduled.reason == PlacementReason.INVALID_SELECTORS:
            return False
        latest = latest_policy(self._caches.policy_snapshots.of(placement.key))
        generation = str(placement.metadata.generation)
        return (
            latest is not None
            and latest.annotations.get(names.ANNOTATION_PLACEMENT_GENERATION) == generation
        )

    def _report(self, placement: Placement, error: str = "") -> None:
        result = SelectionResult(placement.uid, placement.metadata.generation, error)
        if self._results.get(placement.key) != result:
            self._results[placement.key] = result
            for handler in self._handlers:
                handler(placement.key)

    async def _add_finalizers(self, placement: Placement) -> None:
        present = placement.metadata.finalizers or ()
        wanted = [*present, *(each for each in _FINALIZERS if each not in present)]
        await self._patch_placement(placement, wanted)

    async def _patch_placement(self, placement: Placement, finalizers: list[str]) -> None:
        written = await self._client.patch(
            scope_of(placement.key).placements,
            placement.name,
            finalizers_patch(placement, finalizers),
            placement.namespace,
        )
        self._caches.placements.wrote(written)

    async def _delete(self, placement: Placement) -> Outcome:
        """Delete all snapshots of a placement, then drop its finalizer."""
        present = placement.metadata.finalizers or ()
        if names.FINALIZER_PLACEMENT not in present:
            return Done()
        scope, key = scope_of(placement.key), placement.key
        await self._delete_all(
            scope.policy_snapshots,
            self._caches.policy_snapshots,
            self._caches.policy_snapshots.of(key),
        )
        await self._delete_all(
            scope.resource_snapshots,
            self._caches.resource_snapshots,
            self._caches.resource_snapshots.of(key),
        )
        kept = [each for each in present if each != names.FINALIZER_PLACEMENT]
        await self._patch_placement(placement, kept)
        return Done()

    async def _delete_all(
        self, resource: Resource[Any], cache: ScopedCache[ObjectT], snapshots: Iterable[ObjectT]
    ) -> None:
        async def delete_one(snapshot: ObjectT) -> None:
            if await delete(self._client, resource, snapshot):
                cache.deleted(snapshot)

        await in_parallel(delete_one, snapshots)

    async def _ensure_policy(self, placement: Placement) -> None:
        caches, scope = self._caches.policy_snapshots, scope_of(placement.key)
        plan = plan_policy(
            placement, caches.of(placement.key), self._caches.bindings.of(placement.key)
        )
        await self._delete_all(scope.policy_snapshots, caches, plan.prune)
        for snapshot in plan.demote:
            await self._demote(scope.policy_snapshots, caches, snapshot)
        if plan.reuse is not None and plan.patch is not None:
            await self._patch(scope.policy_snapshots, caches, plan.reuse, plan.patch)
        if plan.create is not None:
            body = policy_document(placement, plan.create)
            caches.wrote(await self._client.create(scope.policy_snapshots, body))

    async def ensure_resources(
        self, placement: Placement, content: SelectedContent, delays: Delays
    ) -> Outcome:
        """Create resource snapshots with `content` unless the latest group has it; wait for the
        delays.
        """
        caches = self._caches.resource_snapshots
        resource = caches.informers[1 if placement.namespace else 0].scope.resource
        plan = plan_resources(
            placement,
            caches.of(placement.key),
            content.hash,
            len(content.parts),
            self._caches.bindings.of(placement.key),
            delays=delays,
            now=self._clock.now(),
        )
        match plan:
            case ReuseGroup(group, demote, patch):
                for master in demote:
                    await self._demote(resource, caches, master)
                if patch is not None and group.master is not None:
                    await self._patch(resource, caches, group.master, patch)
            case CompleteGroup(group, missing):
                for sub_index in missing:
                    await self._create_part(placement, group.index, content, sub_index + 1)
            case WaitForChanges(group, seconds, patch):
                if patch is not None and group.master is not None:
                    await self._patch(resource, caches, group.master, patch)
                return After(seconds)
            case CreateGroup(index, prune, demote):
                await self._delete_all(resource, caches, prune)
                for master in demote:
                    await self._demote(resource, caches, master)
                for part in range(len(content.parts)):
                    await self._create_part(placement, index, content, part)
        return Done()

    async def _create_part(
        self, placement: Placement, index: int, content: SelectedContent, part: int
    ) -> None:
        caches = self._caches.resource_snapshots
        resource = caches.informers[1 if placement.namespace else 0].scope.resource
        body = resource_document(placement, index, content, part)
        written = await self._client.create(resource, body)
        self._contents.keep(written, content.parts[part])
        caches.wrote(written)

    async def _demote(
        self, resource: Resource[ObjectT], cache: ScopedCache[ObjectT], snapshot: ObjectT
    ) -> None:
        labels = {names.LABEL_LATEST_SNAPSHOT: "false"}
        await self._patch(resource, cache, snapshot, {"labels": labels})

    async def _patch(
        self,
        resource: Resource[ObjectT],
        cache: ScopedCache[ObjectT],
        snapshot: ObjectT,
        metadata: Json,
    ) -> None:
        body = {"metadata": metadata | {"resourceVersion": snapshot.resource_version}}
        cache.wrote(
            await self._client.patch(resource, snapshot.name, MergePatch(body), snapshot.namespace)
        )


def selected_namespace(placement: Placement) -> str:
    """Return the namespace that a placement's status is mirrored into; empty if there is none."""
    for selector in placement.spec.resource_selectors:
        if GroupVersionKind(selector.group, selector.version, selector.kind) == NAMESPACE:
            if selector.name:
                return selector.name
            break
    return next(
        (
            each.name
            for each in placement.status.selected_resources
            if (each.group, each.kind) == ("", NAMESPACE.kind)
        ),
        "",
    )


def _check_namespace(placement: Placement) -> None:
    """Check that a placement whose status is mirrored into a namespace still selects that
    namespace.

    :raises ConfigError: the placement selects another namespace than before.
    """
    if placement.spec.status_reporting_scope != StatusReportingScope.NAMESPACE_ACCESSIBLE:
        return
    wanted = selected_namespace(placement)
    placed = {
        each.name
        for each in placement.status.selected_resources
        if (each.group, each.kind) == ("", NAMESPACE.kind)
    }
    if placed and wanted not in placed:
        raise ConfigError(
            f"the namespace selector cannot be changed from {', '.join(sorted(placed))} to {wanted}"
            f" while statusReportingScope is {StatusReportingScope.NAMESPACE_ACCESSIBLE}"
        )


def _version(placement: Placement) -> tuple[object, ...]:
    return (
        placement.uid,
        placement.metadata.generation,
        placement.deleting,
        placement.metadata.finalizers,
    )


def _marks(snapshot: Object) -> tuple[object, ...]:
    metadata = snapshot.metadata
    return metadata.labels, metadata.annotations, metadata.deletion_timestamp
