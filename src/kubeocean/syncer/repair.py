"""Repair: what a person can do about things that are left over.

Two looks, a while apart, and both read fresh: what is on its way in or out is not there both times.
Then each orphan is confirmed on both sides once more and removed. What cannot be proven is only
told.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from kubeocean.runtime.clock import Clock, RealClock
from kubeocean.runtime.objects import Untyped
from kubeocean.syncer.comparison import Finding, Trace
from kubeocean.syncer.inventory import Inventory, Look
from kubeocean.syncer.removal import Fate, Remover

__all__ = ["Repair", "Report", "Verdict"]

_FOUND: Final = "found"
_LEFT: Final = "left alone"
_MENDED: Final = frozenset({Fate.REMOVED, Fate.GONE, Fate.WANTED})


@dataclass(frozen=True, slots=True)
class Verdict:
    """What was found, and what became of it."""

    finding: Finding
    fate: str

    @property
    def mended(self) -> bool:
        return self.fate in _MENDED


@dataclass(frozen=True, slots=True)
class Report:
    """All of it; `skipped` are kinds that could not be looked at."""

    verdicts: tuple[Verdict, ...]
    skipped: tuple[str, ...]

    @property
    def clean(self) -> bool:
        """Whether nothing is left to be done."""
        return all(verdict.mended for verdict in self.verdicts)


class Repair:
    """Puts one binding right."""

    def __init__(
        self,
        inventory: Inventory,
        remover: Remover,
        *,
        pause_s: float,
        clock: Clock | None = None,
    ) -> None:
        self._inventory = inventory
        self._remover = remover
        self._pause_s = pause_s
        self._clock = clock or RealClock()

    async def run(self, *, dry_run: bool, say: Callable[[str], None] = lambda what: None) -> Report:
        """Look twice, and remove what was an orphan both times; `say` is told what is being done.

        :raises ApiError: one of the servers did not answer.
        """
        say("first look")
        look = await self._inventory.look()
        first = {each.identity for each in look.findings}
        if not first:
            return Report((), tuple(sorted(look.skipped)))
        say(f"{len(first)} found, second look in {self._pause_s:g} s")
        await self._clock.sleep(self._pause_s)
        second = await self._inventory.look()
        both = [each for each in second.findings if each.identity in first]
        verdicts = []
        for finding in both:
            say(str(finding.subject))
            verdicts.append(Verdict(finding, await self._settle(finding, second, dry_run)))
        return Report(tuple(verdicts), tuple(sorted(second.skipped)))

    async def _settle(self, finding: Finding, look: Look, dry_run: bool) -> str:
        if not finding.removable:
            return _LEFT
        if dry_run:
            return _FOUND

        async def unused(subject: Trace, there: Untyped) -> bool:
            return look.is_unused(subject) and not await self._inventory.is_used_now(subject)

        return await self._remover.remove(finding, unused)
