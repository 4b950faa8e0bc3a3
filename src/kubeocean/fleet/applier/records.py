"""Records: the state that the applier keeps of each Work between two passes, and their delay.

Records can be lost: a pass without a record reads every object and comes to the same status. With a
record, a pass reads only objects that have changed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from kubeocean.fleet.applier.plan import Result
from kubeocean.fleet.applier.report import Processed
from kubeocean.fleet.pool import ObjectRef
from kubeocean.runtime.objects import Json

__all__ = ["Backoff", "Passes", "Remembered", "WorkRecord", "without_content"]

ObjectIdentity: TypeAlias = tuple[str, str, str, str]  # of `Identifier.object`


@dataclass(frozen=True, slots=True)
class Passes:
    """The passes over a Work since its generation or result changed."""

    generation: int
    result: str  # a digest of the reasons of all manifests
    count: int = 0
    delay_s: float = 0.0  # from this pass to the next one


@dataclass(frozen=True, slots=True)
class Backoff:
    """Computes delays between passes over a Work; `--work-applier-requeue-rate-limiter-*`.

    The first passes over a Work follow at a fixed delay, then the delay grows slowly, then fast up
    to a quarter of an hour. A Work that is available (or whose differences are reported) skips the
    slow growth. A new generation or another result starts from the beginning.
    """

    fixed_attempts: int = 1
    fixed_delay_s: float = 5.0
    slow_start_s: float = 2.0
    slow_factor: float = 1.2
    slow_limit_s: float = 15.0
    fast_factor: float = 1.5
    fast_limit_s: float = 900.0
    skips_to_fast: bool = True

    def after_pass(
        self, last: Passes | None, *, generation: int, result: str, settled: bool
    ) -> Passes:
        """Return the passes including the one that has just ended; `delay_s` is until the next one.

        `settled` means that the Work is available or has its differences reported.
        """
        if last is None or (last.generation, last.result) != (generation, result):
            last = Passes(generation, result)
        delay = self._delay(last, settled)
        return Passes(generation, result, last.count + 1, delay)

    def _delay(self, last: Passes, settled: bool) -> float:
        if last.count < self.fixed_attempts:
            return self.fixed_delay_s
        if not (settled and self.skips_to_fast):
            if last.count == self.fixed_attempts:
                return min(self.slow_start_s, self.slow_limit_s)
            if last.delay_s < self.slow_limit_s:
                return min(last.delay_s * self.slow_factor, self.slow_limit_s)
        base = max(last.delay_s, self.slow_start_s)
        return min(base * self.fast_factor, self.fast_limit_s)


@dataclass(frozen=True, slots=True)
class Remembered:
    """The result for a manifest, which is valid while manifest and object do not change."""

    ref: ObjectRef
    manifest: str  # hash of the manifest
    version: str  # resourceVersion of the object
    with_status: bool  # whether the result depends on the status of the object
    processed: Processed


@dataclass(slots=True)
class WorkRecord:
    """State that the applier keeps of a Work between passes over its manifests.

    - `generation`: generation of the Work whose manifests the results are for.
    - `basis`: inputs that all results depend on besides manifest and object.
    - `written`, `applied_work_written`: the resourceVersions that the applier wrote last, by which
      events of its own writes are recognized.
    - `lacks_kinds`: whether a manifest is of a kind that the member does not have.
    - `finished_jobs`: notes from events of Jobs, until a pass has written them.
    - `unanswered_since`: since when passes were incomplete because the member did not answer.
    - `passed_at`: when the last pass ended.
    - `version`: generation and release of the Work when its manifests were read last.
    - `named`: the objects that these manifests name.
    - `settled_at`: the resourceVersions of Work and AppliedWork after a pass that left nothing to
      do; the next pass has nothing to do either, unless they or an object have changed.
    """

    uid: str
    generation: int = -1
    basis: object = None
    results: dict[ObjectIdentity, Remembered] = field(default_factory=dict)
    passes: Passes | None = None
    written: int = -1
    applied_work_written: int = -1
    is_busy: bool = False
    lacks_kinds: bool = False
    finished_jobs: dict[str, str] = field(default_factory=dict)
    unanswered_since: float | None = None
    passed_at: float = float("-inf")
    version: tuple[int, str] | None = None
    named: frozenset[ObjectIdentity] = frozenset()
    settled_at: tuple[int, int] | None = None

    def hold_for(self, basis: object) -> None:
        """Drop all results if they were computed from other inputs than `basis`."""
        if self.basis != basis:
            self.basis = basis
            self.results.clear()

    def forget_notes(self, written: Mapping[str, str]) -> None:
        """Drop the notes on finished Jobs that were written; keep newer ones from events."""
        for name, note in written.items():
            if self.finished_jobs.get(name) == note:
                del self.finished_jobs[name]


def without_content(processed: Processed) -> Processed:
    """Return a result whose object is reduced to the UID and generation that reports need."""
    live = processed.result.live
    if live is None:
        return processed
    metadata: Json = live["metadata"]
    kept = {name: metadata[name] for name in ("uid", "generation") if name in metadata}
    result: Result = replace(processed.result, live={"metadata": kept})
    return replace(processed, result=result)
