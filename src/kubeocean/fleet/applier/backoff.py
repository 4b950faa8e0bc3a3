"""Back-off: when a Work is processed again without an event.

The first passes over a Work follow at a fixed delay, then the delay grows slowly, then fast up to a
quarter of an hour. A Work that is available (or whose differences are reported) skips the slow
growth. A new generation or another result starts from the beginning.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Backoff", "Passes"]


@dataclass(frozen=True, slots=True)
class Passes:
    """The passes over a Work since its generation or result changed."""

    generation: int
    result: str  # a digest of the reasons of all manifests
    count: int = 0
    delay_s: float = 0.0  # from this pass to the next one


@dataclass(frozen=True, slots=True)
class Backoff:
    """Computes delays between passes over a Work; `--work-applier-requeue-rate-limiter-*`."""

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
