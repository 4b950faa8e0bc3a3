"""The label on the worker's nodes that names the policy that lends the node.

The label holds one policy. The label is set where it names no policy of another binding or of
another computing cluster, and removed where it names a policy of this binding.
"""

from __future__ import annotations

from collections.abc import Iterator

from kubeocean.api import naming
from kubeocean.errors import Forbidden
from kubeocean.runtime.client import MergePatch
from kubeocean.runtime.kinds import NODES, Node
from kubeocean.runtime.logs import get_logger
from kubeocean.runtime.objects import Json, Key
from kubeocean.syncer.clusters import Clusters
from kubeocean.syncer.nodes.policy_cache import PolicyCache

__all__ = ["NodeLabels"]

_log = get_logger(__name__)


class NodeLabels:
    """Sets and removes the label that names the policy on the worker's nodes, for one binding."""

    def __init__(self, clusters: Clusters, policies: PolicyCache) -> None:
        self._clusters = clusters
        self._policies = policies
        self._allowed = True

    async def set(self, pnode: Node, policy: str) -> None:
        """Label the worker's node with its policy, unless it has the label of another binding."""
        label = pnode.labels.get(self._clusters.domain.policy_applied, "")
        value = naming.label_value(policy)
        if label == value or self._is_foreign(label):
            return
        if self._clusters.is_ours(self._clusters.policies.get(Key("", policy))):
            await self._label(pnode, value)

    async def remove(self, pnode: Node | None, applied: str | None = None) -> None:
        """Remove the label from a worker's node, if it names our policy or the policy `applied`."""
        if pnode is None or not self._clusters.worker_health.answers:
            return
        label = pnode.labels.get(self._clusters.domain.policy_applied)
        ours = self._policies.has_label(label or "") or label == naming.label_value(applied or "")
        if label and ours and not self._is_foreign(label):
            await self._label(pnode, None)

    def left(self) -> Iterator[str]:
        """Return the worker's nodes that still have a label of this binding's policies."""
        if not self._allowed:
            return
        for pnode in self._clusters.pnodes.items():
            label = pnode.labels.get(self._clusters.domain.policy_applied)
            if label and self._policies.has_label(label):
                yield pnode.name

    def _is_foreign(self, label: str) -> bool:
        """Whether the label names a policy that neither lends nor lent to this binding."""
        clusters = self._clusters
        named = [p for p in clusters.policies.items() if naming.label_value(p.name) == label]
        return any(not clusters.concerns(each) and not clusters.was_ours(each) for each in named)

    async def _label(self, pnode: Node, policy: str | None) -> None:
        if not self._allowed:
            return
        clusters = self._clusters
        labels: Json = {clusters.domain.policy_applied: policy}
        body = MergePatch({"metadata": {"uid": pnode.uid, "labels": labels}})
        try:
            clusters.pnodes.wrote(await clusters.worker.patch(NODES, pnode.name, body))
        except Forbidden as error:
            # The owner may refuse the permission to label nodes; everything else works without.
            self._allowed = False
            _log.warning("Was not allowed to label worker nodes", error=str(error))
