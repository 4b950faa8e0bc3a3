"""Marks: the worker's nodes that are lent say so, by a label that names the policy.

The label has room for one policy. It is put where no policy of somebody else is named, and taken
off where one of ours is: a binding of another name, or of another computing cluster, has its own.
"""

from __future__ import annotations

from collections.abc import Iterator

from kubeocean.api import naming
from kubeocean.errors import Forbidden
from kubeocean.runtime.kinds import NODES, Node
from kubeocean.runtime.logs import get_logger
from kubeocean.runtime.objects import Json, Key
from kubeocean.runtime.patches import MergePatch
from kubeocean.syncer.bottomup.book import Book
from kubeocean.syncer.world import World

__all__ = ["Marks"]

_log = get_logger(__name__)


class Marks:
    """The labels of one binding on the worker's nodes."""

    def __init__(self, world: World, book: Book) -> None:
        self._world = world
        self._book = book
        self._allowed = True

    async def put(self, pnode: Node, policy: str) -> None:
        """Tell the owner, on the node itself, which policy lends it; of several, the first one."""
        label = pnode.labels.get(self._world.domain.policy_applied, "")
        wanted = naming.label_value(policy)
        if label == wanted or self._is_foreign(label):
            return
        if self._world.holds(self._world.policies.get(Key("", policy))):
            await self._label(pnode, wanted)

    async def take_off(self, pnode: Node | None, applied: str | None = None) -> None:
        """Take off the label, if it names one of this binding's policies, or the one `applied`."""
        if pnode is None or not self._world.reach.answers:
            return
        label = pnode.labels.get(self._world.domain.policy_applied)
        ours = self._book.labelled(label or "") or label == naming.label_value(applied or "")
        if label and ours and not self._is_foreign(label):
            await self._label(pnode, None)

    def left(self) -> Iterator[str]:
        """The worker's nodes that still carry a label of ours, and should not."""
        if not self._allowed:
            return
        for pnode in self._world.pnodes.items():
            label = pnode.labels.get(self._world.domain.policy_applied)
            if label and self._book.labelled(label):
                yield pnode.name

    def _is_foreign(self, label: str) -> bool:
        """Whether it names a policy that does not lend to us."""
        named = [p for p in self._world.policies.items() if naming.label_value(p.name) == label]
        return any(not self._world.concerns(policy) for policy in named)

    async def _label(self, pnode: Node, policy: str | None) -> None:
        if not self._allowed:
            return
        world = self._world
        labels: Json = {world.domain.policy_applied: policy}
        body = MergePatch({"metadata": {"uid": pnode.uid, "labels": labels}})
        try:
            world.pnodes.wrote(await world.worker.patch(NODES, pnode.name, body))
        except Forbidden as error:
            # The right to label nodes is the owner's to give; everything else works without.
            self._allowed = False
            _log.warning("Left worker nodes unlabelled", error=str(error))
