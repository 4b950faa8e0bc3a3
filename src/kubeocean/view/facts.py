"""Facts: what was read, before anything is made of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from kubeocean.api.binding import ClusterBinding
from kubeocean.api.policy import ResourceLeasingPolicy
from kubeocean.leasing.amounts import Amounts
from kubeocean.runtime.kinds import Lease
from kubeocean.view.kinds import Deployment, VirtualNode
from kubeocean.view.model import PodCounts, WorkerState

__all__ = ["Below", "Facts", "NodeUse"]


@dataclass(frozen=True, slots=True)
class NodeUse:
    """The pods of one virtual node, and what they request together."""

    pods: PodCounts = field(default_factory=PodCounts)
    used: Amounts = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Below:
    """What a worker said, or why it did not."""

    state: WorkerState = WorkerState.NOT_ASKED
    message: str = ""
    policies: tuple[ResourceLeasingPolicy, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """Both sides. `unseen` says what the viewer may not see of the computing cluster.

    Where `all_bindings` is not set, only some were asked for: nothing follows from the absence of
    another.
    """

    bindings: tuple[ClusterBinding, ...] = ()
    nodes: tuple[VirtualNode, ...] = ()
    uses: Mapping[str, NodeUse] | None = None  # by node; None: not seen
    deployments: tuple[Deployment, ...] = ()
    elections: tuple[Lease, ...] = ()
    workers: Mapping[str, Below] = field(default_factory=dict)  # by binding
    unseen: tuple[str, ...] = ()
    all_bindings: bool = True
