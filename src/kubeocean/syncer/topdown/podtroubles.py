"""Troubles: telling a user that a pod which runs is not as it should be, and why.

A token that cannot be had, a change that the worker refuses: each says which object and why, in an
event and in a condition of the virtual pod, which goes when all is well. What failed is tried again
ever more rarely. Only pods in trouble cost anything.
"""

from __future__ import annotations

from typing import Final

from kubeocean.api.reasons import PodEvent
from kubeocean.runtime.events import reference
from kubeocean.runtime.outcomes import After, Outcome
from kubeocean.syncer.podviews import VIRTUAL_PODS, VirtualPod
from kubeocean.syncer.topdown.podrefusals import LONGEST_MESSAGE, LONGEST_S, Refusals
from kubeocean.syncer.world import World

__all__ = ["CHANGES", "TOKENS", "Troubles"]

# The parts of a pod that are carried down after it was made
CHANGES: Final = "changes"
TOKENS: Final = "tokens"


class Troubles:
    """Of one binding's pods that run."""

    def __init__(self, world: World, refusals: Refusals) -> None:
        self._world = world
        self._refusals = refusals
        self._of: dict[str, dict[str, str]] = {}  # by virtual UID: what is wrong, by part

    def message(self, vpod: VirtualPod) -> str:
        """All that is wrong; empty if nothing is."""
        parts = self._of.get(vpod.uid)
        return "; ".join(parts.values())[:LONGEST_MESSAGE] if parts else ""

    def left_s(self, vpod: VirtualPod, part: str) -> float:
        """Seconds until a part that failed is tried again; zero if it is due, or did not fail."""
        return self._refusals.left_s(vpod) if part in self._of.get(vpod.uid, ()) else 0.0

    def note(self, vpod: VirtualPod, part: str, message: str) -> None:
        """Say what is wrong, with nothing to be done about it until the pod changes."""
        self._of.setdefault(vpod.uid, {})[part] = message
        said = reference(VIRTUAL_PODS, vpod)
        self._world.events.emit(said, "Warning", PodEvent.FAILED_UPDATE, message)

    def tell(
        self, vpod: VirtualPod, part: str, message: str, *, at_most_s: float = LONGEST_S
    ) -> Outcome:
        """Say what is wrong; when it is tried again."""
        self.note(vpod, part, message)
        return After(self._refusals.put_off(vpod, at_most_s=at_most_s))

    def over(self, vpod: VirtualPod, part: str) -> None:
        """That part is as it should be."""
        parts = self._of.get(vpod.uid)
        if parts is None or parts.pop(part, None) is None or parts:
            return
        del self._of[vpod.uid]
        self._refusals.forget(vpod.key)

    def forget(self, vpod: VirtualPod) -> None:
        """The virtual pod is gone."""
        self._of.pop(vpod.uid, None)
