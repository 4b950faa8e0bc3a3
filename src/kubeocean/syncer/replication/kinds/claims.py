"""PersistentVolumeClaims: the copy of a bound claim is bound to the copy of its volume.

The copy of a volume names the copy of its claim before that claim exists, so that the worker binds
these two to each other, whatever their classes and sizes, and no other claim can take the volume.
The copy of a claim therefore begins unbound: fields in which the computing cluster recorded its own
binding are not copied (Kubernetes sets a claim to Lost that names a volume which does not have the
claim's UID). The copy keeps the name of the storage class, which decides in the worker whether the
claim may grow; the copy of a claim without a class has an empty class name, because the worker
would set its default class.

When a claim grows, the computing cluster enlarges the volume and a kubelet of the worker enlarges
its file system. The kubelet writes the progress of that to the copy, and the syncer writes the
progress to the claim: no more than Kubernetes lets a kubelet write to a claim.

Claims are replicated after their volumes, and volumes after their Secrets. They are deleted in the
opposite order, each when the one before it is gone from the worker.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from kubeocean.api.bindings import ClusterBinding
from kubeocean.errors import Forbidden, Invalid
from kubeocean.runtime.client import MergePatch
from kubeocean.runtime.clock import within
from kubeocean.runtime.events import reference
from kubeocean.runtime.logs import get_logger
from kubeocean.runtime.objects import Json, Key, Resource
from kubeocean.runtime.quantity import Quantity
from kubeocean.syncer.clusters import Clusters
from kubeocean.syncer.pods.pod_security import privileges_of, volume_problem
from kubeocean.syncer.pods.referenced_objects import References
from kubeocean.syncer.replication.copy_forge import Copy, PodReference, ReplicatedKind, Source
from kubeocean.syncer.replication.missing import Missing
from kubeocean.syncer.replication.referring_pods import CLAIM, VOLUME, PodReferences
from kubeocean.syncer.replication.replicator import VOLUME_NAME, Replicator, Rules

__all__ = ["CLAIMS", "ClaimRules", "Unbound", "expanded_status", "translate", "volume_of"]

BINDER_S: Final = 2.0  # more than the worker's binder takes to give a volume a phase
NUDGE_S: Final = 1.0  # more than the worker's binder takes to bind a claim to its bound volume
_PENDING: Final = "Pending"
_AVAILABLE: Final = "Available"
_BOUND: Final = "Bound"
_STORAGE: Final = "storage"
_PENDING_RESIZE: Final = "FileSystemResizePending"
_RESIZE_ERROR: Final = "NodeResizeError"
_RESIZING: Final = (_PENDING_RESIZE, _RESIZE_ERROR, "Resizing")  # conditions until a resize ends
_NODE_STATES: Final = ("NodeResizeInProgress", "NodeResizeInfeasible")  # written by kubelets
_NODE_STATE_PREFIX: Final = "NodeResize"
_MESSAGE_LENGTH: Final = 1024
_NOT_REPORTED: Final = "StatusNotReported"  # the reason of events
_COPIED: Final = ("accessModes", "resources", "volumeMode")

_log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Unbound:
    """The phase of a claim that has no volume yet, or has lost its volume."""

    phase: str


def volume_of(content: Json) -> str | Unbound:
    """Return the name of the volume that a claim is bound to, or its phase as `Unbound`."""
    phase = (content.get("status") or {}).get("phase") or _PENDING
    volume: str = (content.get("spec") or {}).get("volumeName") or ""
    return volume if volume and phase == _BOUND else Unbound(phase)


def translate(content: Json, *, volume: str) -> Json:
    """Return the content of the copy of a claim; `volume` is the copy of its volume."""
    spec: Json = content.get("spec") or {}
    kept = {key: spec[key] for key in _COPIED if spec.get(key)}
    class_name = spec.get("storageClassName") or ""
    return {"spec": kept | {"volumeName": volume, "storageClassName": class_name}}


def expanded_status(content: Json, copy: Copy) -> Json:
    """Return the change of a claim's status that follows from the status of its copy.

    While the file system is smaller than requested, the conditions of its expansion are those of
    the copy; when it is enlarged, they end. Empty if nothing changed, or if the worker reports more
    than the claim requests.
    """
    spec, status = content.get("spec") or {}, content.get("status") or {}
    size = (copy.status.capacity or {}).get(_STORAGE)
    before = (status.get("capacity") or {}).get(_STORAGE)
    requested = ((spec.get("resources") or {}).get("requests") or {}).get(_STORAGE)
    if status.get("phase") != _BOUND or not (size and before and requested):
        return {}
    if Quantity.stored(before) >= Quantity.stored(requested):
        return {}
    if not Quantity.stored(before) < Quantity.stored(size) <= Quantity.stored(requested):
        return _resize_state(status, copy)
    conditions = [c for c in status.get("conditions") or () if c["type"] not in _RESIZING]
    finished: Json = {"capacity": {_STORAGE: size}, "conditions": conditions or None}
    if _STORAGE in (status.get("allocatedResourceStatuses") or {}):
        finished["allocatedResourceStatuses"] = {_STORAGE: None}
    return finished


def _resize_state(status: Json, copy: Copy) -> Json:
    """Return the change of a claim's status that shows a kubelet's progress in resizing.

    Controllers of the computing cluster write `FileSystemResizePending`, too, so that condition
    stays when the copy lacks it. Only kubelets write `NodeResizeError`.
    """
    change: Json = {}
    theirs = {
        condition["type"]: _condition(condition)
        for condition in copy.status.conditions or ()
        if condition.get("type") in (_PENDING_RESIZE, _RESIZE_ERROR)
    }
    before: list[Json] = list(status.get("conditions") or ())
    merged = {each["type"]: each for each in before}
    if _RESIZE_ERROR not in theirs:
        merged.pop(_RESIZE_ERROR, None)
    for type_, condition in theirs.items():
        if not _is_same(merged.get(type_, {}), condition):
            merged[type_] = condition
    after = list(merged.values())
    if after != before:
        change["conditions"] = after or None
    state = (copy.status.allocated_resource_statuses or {}).get(_STORAGE)
    own = (status.get("allocatedResourceStatuses") or {}).get(_STORAGE, "")
    if state in _NODE_STATES and own.startswith(_NODE_STATE_PREFIX) and own != state:
        change["allocatedResourceStatuses"] = {_STORAGE: state}
    return change


def _condition(condition: Json) -> Json:
    """Return a condition of a copy, with a message of bounded length."""
    message = str(condition.get("message") or "")[:_MESSAGE_LENGTH]
    kept = ("type", "status", "reason", "lastTransitionTime")
    return {key: condition[key] for key in kept if condition.get(key)} | {"message": message}


def _is_same(own: Json, theirs: Json) -> bool:
    """Whether two conditions are equal except for their times."""
    fields = ("type", "status", "reason", "message")
    return all((own.get(field) or "") == (theirs.get(field) or "") for field in fields)


def _synced_fields(content: Json) -> Json:
    resources: Json = (content.get("spec") or {}).get("resources") or {}
    return {"/spec/resources/requests": resources.get("requests") or {}}


def _immutable_fields(content: Json) -> Json:
    return {"volumeName": (content.get("spec") or {}).get("volumeName")}


def _pod_references(refs: References) -> Iterator[PodReference]:
    return map(PodReference, refs.all_claims)


def _source_references(content: Json) -> tuple[str, ...]:
    volume = volume_of(content)
    return (volume,) if isinstance(volume, str) else ()


def _copy_references(content: Json) -> tuple[Key, ...]:
    volume = (content.get("spec") or {}).get("volumeName")
    return (Key("", volume),) if volume else ()


CLAIMS: Final = ReplicatedKind(
    sources=Resource("", "v1", "persistentvolumeclaims", CLAIM, True, Source),
    copies=Resource("", "v1", "persistentvolumeclaims", CLAIM, True, Copy),
    synced_fields=_synced_fields,
    immutable_fields=_immutable_fields,
    pod_references=_pod_references,
    source_references=_source_references,
    copy_references=_copy_references,
    refers_to=VOLUME,
    # Written by the binder of the computing cluster; `selected-node` names a virtual node.
    dropped_annotations=frozenset(
        {
            "pv.kubernetes.io/bind-completed",
            "pv.kubernetes.io/bound-by-controller",
            "volume.kubernetes.io/selected-node",
        }
    ),
)


class ClaimRules(Rules):
    """Rules for replicating claims, which need their volumes and the worker's volume binder."""

    def __init__(
        self,
        clusters: Clusters,
        kind: ReplicatedKind,
        references: PodReferences,
        replicators: Mapping[str, Replicator],
    ) -> None:
        super().__init__(clusters, kind, references, replicators)
        self._names: dict[Key, str] = {}  # of copies that are being created, by virtual claim
        self._available: dict[str, asyncio.Event] = {}  # by volume that a claim waits for
        self._bound_at: dict[str, float] = {}  # by volume: when the cache showed it bound

    @property
    def _volumes(self) -> Replicator:
        return self.replicators[VOLUME]

    def connect(self) -> None:
        self._volumes.on_change(lambda key: self.replicator.retry())
        self._volumes.copies.on_change(self._volume_copy_changed)
        self.replicator.copies.on_change(self._copy_changed)
        self.replicator.sources.on_change(self._source_changed)
        self.clusters.bindings.on_change(self._binding_changed)

    def synced(self) -> bool:
        return super().synced() and self._volumes.synced

    def copy_name(self, key: Key) -> str:
        return self._names.get(key) or super().copy_name(key)

    def fits(self, source: Source, copy: Copy) -> bool:
        """Whether pods may still use the volume of a claim, by the binding's present privileges."""
        binding = self.clusters.binding
        if binding is None or privileges_of(binding).host_path:
            return True
        volumes = map(self._volumes.sources.get, _volume_keys(source))
        privileges = privileges_of(binding)
        return all(volume_problem(each.content(), privileges) is None for each in volumes if each)

    async def translate(self, source: Source, name: str) -> Json | Missing:
        content, key = source.content(), source.key
        volume = volume_of(content)
        if isinstance(volume, Unbound):
            message = f"{CLAIM} {key} is not bound to a volume, it is {volume.phase}"
            return Missing(CLAIM, key, message)
        self._names[key] = name
        copy = await self._volumes.ensure(Key("", volume))
        if isinstance(copy, Missing):
            return copy
        if self.replicator.copies.get(Key(self.clusters.mount_namespace, name)) is None:
            await self._until_available(copy)
        return translate(content, volume=copy)

    async def _until_available(self, volume: str) -> None:
        """Wait at most `BINDER_S` until the worker's binder has set the phase of a volume.

        A binder that sees a claim before the volume that the claim names retries after 15 s only.
        """
        copy = self._volumes.copies.get(Key("", volume))
        if copy is not None and copy.status.phase == _AVAILABLE:
            return
        available = self._available.setdefault(volume, asyncio.Event())
        try:
            await within(self.clusters.clock, BINDER_S, available.wait)
        except TimeoutError:
            _log.debug("Stopped waiting for volume to become Available", volume=volume)
        finally:
            self._available.pop(volume, None)

    async def report(self, source: Source, copy: Copy) -> None:
        """Write the phase of a copy, and the progress of its volume's expansion, to its claim."""
        claim = await self.replicator.report_phase(source, copy)
        status = expanded_status(source.content(), copy)
        if claim is None or not status:
            return
        version = {"uid": claim.uid, "resourceVersion": claim.resource_version}
        patch = MergePatch({"metadata": version, "status": status})
        try:
            written = await self.clusters.computing.patch(
                self.kind.sources, source.name, patch, source.namespace, subresource="status"
            )
        except (Forbidden, Invalid) as error:
            target = reference(self.kind.sources, source)
            self.clusters.events.emit(target, "Warning", _NOT_REPORTED, str(error))
            return
        self.replicator.sources.wrote(written)
        _log.info("Reported expansion of claim", claim=str(source.key), status=status)

    async def amend(self, source: Source, copy: Copy) -> Json | Missing:
        """Return an annotation to write on a claim's copy that the worker's binder left pending.

        The write makes the binder retry at once. Binding takes the binder several writes, in which
        two of its own parts may conflict; the binder then leaves the volume bound and the claim
        pending, for 15 s.
        """
        since = self._bound_at.get(copy.spec.volume_name)
        if copy.status.phase != _PENDING or since is None:
            return {}
        if (rest_s := since + NUDGE_S - self.clusters.clock.monotonic()) > 0:
            self.replicator.controller.queue.add_after(source.key, rest_s)
            return {}
        del self._bound_at[copy.spec.volume_name]  # once
        domain = self.clusters.domain
        touched = {**copy.annotations, domain.last_sync_time: self.clusters.now_text()}
        return {"/metadata/annotations": touched}

    def _copy_changed(self, old: Copy | None, new: Copy | None) -> None:
        if new is not None and old is not None:
            return
        if old is not None:
            self._names.pop(self.replicator.source_of(old), None)
        for copy in (old, new):
            volume = self._volumes.copies.get(Key("", copy.spec.volume_name if copy else ""))
            if volume is not None:
                self._volumes.check(self._volumes.source_of(volume))

    def _source_changed(self, old: Source | None, new: Source | None) -> None:
        if new is None and old is not None:
            for volume in _volume_keys(old):
                self._volumes.check(volume)

    def _volume_copy_changed(self, old: Copy | None, new: Copy | None) -> None:
        if new is None:
            self._bound_at.pop(old.name if old else "", None)
            return
        before, phase = (copy.status.phase if copy else "" for copy in (old, new))
        if phase == _AVAILABLE and (available := self._available.get(new.name)) is not None:
            available.set()
        if phase == _BOUND != before:
            self._bound_at[new.name] = self.clusters.clock.monotonic()
            for claim in self.replicator.copies.by(VOLUME_NAME, new.name):
                self.replicator.check(self.replicator.source_of(claim))

    def _binding_changed(self, old: ClusterBinding | None, new: ClusterBinding | None) -> None:
        if privileges_of(old) != privileges_of(new):
            self.replicator.retry()


def _volume_keys(claim: Source) -> list[Key]:
    return [Key("", name) for name in _source_references(claim.content())]
