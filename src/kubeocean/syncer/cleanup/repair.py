"""Repair of one binding on behalf of a person: deletion of the orphans that two comparisons find.

Both comparisons read from the API servers, some time apart: an object that is just being created or
deleted is not an orphan in both. Each orphan is then confirmed in both clusters once more and
deleted. So is a pod that has the label of Kubeocean and names nothing, which no sweep deletes.
Other objects without proof of their owner are only reported.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from kubeocean.runtime.clock import Clock, RealClock
from kubeocean.runtime.objects import Untyped
from kubeocean.syncer.cleanup.diff import Counterpart, Difference
from kubeocean.syncer.cleanup.orphan_removal import Fate, Remover
from kubeocean.syncer.cleanup.snapshot import ClusterSnapshot, Comparison

__all__ = ["Repair", "RepairReport", "RepairResult"]

_FOUND: Final = "found"
_LEFT: Final = "left alone"
_DONE: Final = frozenset({Fate.REMOVED, Fate.GONE, Fate.WANTED})


@dataclass(frozen=True, slots=True)
class RepairResult:
    """A difference between the clusters, and the result of its repair."""

    finding: Difference
    fate: str

    @property
    def mended(self) -> bool:
        """Whether the difference needs no further action."""
        return self.fate in _DONE


@dataclass(frozen=True, slots=True)
class RepairReport:
    """The results of a repair; `skipped` are kinds that could not be listed."""

    verdicts: tuple[RepairResult, ...]
    skipped: tuple[str, ...]

    @property
    def clean(self) -> bool:
        """Whether no difference needs further action."""
        return all(verdict.mended for verdict in self.verdicts)


class Repair:
    """Compares the clusters of one binding twice, and deletes the orphans of both comparisons."""

    def __init__(
        self,
        snapshot: ClusterSnapshot,
        remover: Remover,
        *,
        pause_s: float,
        clock: Clock | None = None,
    ) -> None:
        self._snapshot = snapshot
        self._remover = remover
        self._pause_s = pause_s
        self._clock = clock or RealClock()

    async def run(
        self, *, dry_run: bool, say: Callable[[str], None] = lambda what: None
    ) -> RepairReport:
        """Compare the clusters twice, and delete the orphans; `say` is called with each step.

        :raises ApiError: an API server did not answer, or refused.
        """
        say("first comparison")
        comparison = await self._snapshot.look()
        first = {each.identity for each in comparison.findings}
        if not first:
            return RepairReport((), tuple(sorted(comparison.skipped)))
        say(f"{len(first)} found, second comparison in {self._pause_s:g} s")
        await self._clock.sleep(self._pause_s)
        second = await self._snapshot.look()
        both = [each for each in second.findings if each.identity in first]
        verdicts = []
        for finding in both:
            say(str(finding.subject))
            verdicts.append(RepairResult(finding, await self._act(finding, second, dry_run)))
        return RepairReport(tuple(verdicts), tuple(sorted(second.skipped)))

    async def _act(self, finding: Difference, comparison: Comparison, dry_run: bool) -> str:
        if not finding.repairable:
            return _LEFT
        if dry_run:
            return _FOUND

        async def unused(subject: Counterpart, obj: Untyped) -> bool:
            return comparison.is_unused(subject) and not await self._snapshot.is_used_now(subject)

        return await self._remover.remove(finding, unused)
