"""The binding, as the syncer sees it: held while there is something of it, and then let go.

Changes of its spec make every node be looked at (`nodes` listens itself). When it is deleted, its
virtual nodes are taken back, by the rules of a deletion that has to end; then our finalizer goes.
What could not be confirmed because the worker does not answer is said, in a condition and an event,
and does not hold it up.
"""

from __future__ import annotations

from kubeocean.api.binding import CLUSTER_BINDINGS, ClusterBinding
from kubeocean.api.reasons import BindingEvent
from kubeocean.errors import NotFound
from kubeocean.runtime.controller import Controller
from kubeocean.runtime.events import reference
from kubeocean.runtime.logs import get_logger
from kubeocean.runtime.objects import Json, Key
from kubeocean.runtime.outcomes import Done, Outcome
from kubeocean.runtime.patches import MergePatch
from kubeocean.syncer.world import World

__all__ = ["Bindings"]

_log = get_logger(__name__)


class Bindings:
    """One binding; the key is its name."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.controller: Controller[Key] = Controller(
            f"clusterbinding-{world.binding_name}",
            self.reconcile,
            gate=world.bindings.caught_up,
            clock=world.clock,
            metrics=world.metrics,
        )
        world.bindings.on_change(lambda old, new: self._enqueue())
        world.vnodes.on_change(lambda old, new: self._enqueue_if_deleting())
        world.reach.on_change(self._reached)

    def _enqueue(self) -> None:
        self.controller.enqueue(Key("", self._world.binding_name))

    def _enqueue_if_deleting(self) -> None:
        binding = self._world.binding
        if binding is not None and binding.deleting:
            self._enqueue()

    def _reached(self, answers: bool) -> None:
        binding = self._world.binding
        if binding is None:
            return
        target = reference(CLUSTER_BINDINGS, binding)
        if answers:
            said = "The worker answers again"
            self._world.events.emit(target, "Normal", BindingEvent.WORKER_ANSWERS, said)
        else:
            said = "The worker does not answer; its nodes get no heartbeats until it does"
            self._world.events.emit(target, "Warning", BindingEvent.WORKER_UNREACHABLE, said)
        self._enqueue()

    async def reconcile(self, key: Key) -> Outcome:
        world = self._world
        binding = world.binding
        if binding is None or not world.synced:
            return Done()
        ours, finalizers = world.domain.finalizer_syncer, binding.metadata.finalizers or ()
        if not binding.deleting:
            if ours not in finalizers:
                await self._finalizers(binding, [*finalizers, ours])
            return Done()
        if len(world.vnodes) or ours not in finalizers:
            return Done()  # looked at again with each node that goes
        if not world.reach.answers:
            self._unconfirmed(binding)
        await self._finalizers(binding, [each for each in finalizers if each != ours])
        _log.info("Let go of binding", binding=binding.name, worker_answers=world.reach.answers)
        return Done()

    def _unconfirmed(self, binding: ClusterBinding) -> None:
        since = f"{self._world.reach.since:%Y-%m-%dT%H:%M:%SZ}"
        message = (
            f"The worker has not answered since {since}: pods of this binding may still run there, "
            "and its nodes may still carry our label"
        )
        target = reference(CLUSTER_BINDINGS, binding)
        self._world.events.emit(target, "Warning", BindingEvent.CLEANUP_UNCONFIRMED, message)

    async def _finalizers(self, binding: ClusterBinding, finalizers: list[str]) -> None:
        metadata: Json = {"resourceVersion": binding.resource_version, "finalizers": finalizers}
        try:
            written = await self._world.computing.patch(
                CLUSTER_BINDINGS, binding.name, MergePatch({"metadata": metadata})
            )
        except NotFound:
            return
        self._world.bindings.wrote(written)
