"""Labelling: every object gets its slot, once in its life.

Where the server filters by label, an object without one is nobody's. Whoever creates it may put the
label on it; for the rest the assigner's replica watches the metadata of what has none. A label that
is not the object's slot is put right by whoever finds it.
"""

from __future__ import annotations

import asyncio
from typing import Generic

from kubeocean.errors import NotFound
from kubeocean.runtime.client import Client
from kubeocean.runtime.clock import Clock
from kubeocean.runtime.controller import Controller, Done, Outcome
from kubeocean.runtime.informer import Informer
from kubeocean.runtime.metrics import Metrics
from kubeocean.runtime.objects import Key, Object, ObjectT, Resource
from kubeocean.runtime.patches import MergePatch
from kubeocean.sharding.selection import Everything, SlotOf

__all__ = ["Labeller", "put_slot"]

_WORKERS = 16


async def put_slot(
    client: Client, resource: Resource[ObjectT], obj: Object, *, label: str, slot: int
) -> None:
    """Write the label of one object; another object of the same name is left alone."""
    meta = {"uid": obj.uid, "labels": {label: str(slot)}}
    try:
        await client.patch(resource, obj.name, MergePatch({"metadata": meta}), obj.namespace)
    except NotFound:
        return  # it needs none any more


class Labeller(Generic[ObjectT]):
    """Labels the objects of one resource that have no slot."""

    def __init__(
        self,
        client: Client,
        resource: Resource[ObjectT],
        *,
        label: str,
        slot_of: SlotOf,
        namespace: str = "",
        among: str = "",
        clock: Clock | None = None,
        metrics: Metrics | None = None,
    ) -> None:
        self._client = client
        self._resource = resource
        self._label = label
        self._slot_of = slot_of
        metadata = Everything(client, resource, slot_of)
        self._bare = Informer(
            metadata.client(()),
            resource,
            namespace=namespace,
            labels=f"{among},!{label}" if among else f"!{label}",
            clock=clock,
            metrics=metrics,
        )
        self._controller = Controller[Key](
            f"label-{resource.plural}",
            self._reconcile,
            workers=_WORKERS,
            clock=clock,
            metrics=metrics,
        )
        self._bare.on_change(self._changed)

    async def run(self) -> None:
        """Label until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._bare.run())
            group.create_task(self._controller.run())

    def _changed(self, old: ObjectT | None, new: ObjectT | None) -> None:
        if new is not None:
            self._controller.enqueue(new.key)

    async def _reconcile(self, key: Key) -> Outcome:
        obj = self._bare.get(key)
        if obj is not None:
            await put_slot(
                self._client, self._resource, obj, label=self._label, slot=self._slot_of(obj)
            )
        return Done()
