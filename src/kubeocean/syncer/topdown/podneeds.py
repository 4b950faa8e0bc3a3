"""What a pod needs besides itself, as those see it who make pods: copies, claims and tokens."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from kubeocean.runtime.objects import Key
from kubeocean.syncer.forge.podcontext import Names
from kubeocean.syncer.forge.references import References
from kubeocean.syncer.podviews import PhysicalPod, VirtualPod
from kubeocean.syncer.topdown.missing import Missing

__all__ = ["PodNeeds"]


class PodNeeds(Protocol):
    """All that pods refer to is there below before they are, and goes after them."""

    def on_change(self, handler: Callable[[Key], None]) -> None:
        """Call with a virtual pod that should be looked at again."""

    async def prepare(self, pod: VirtualPod, refs: References) -> Names | Missing:
        """What everything is called below, where it now is; or what is missing."""

    async def attach(self, pod: VirtualPod, ppod: PhysicalPod, refs: References) -> float | None:
        """Make what belongs to the physical pod; seconds until that is due again."""

    def release(self, pod_key: Key) -> None:
        """The virtual pod is gone."""
