"""Timing: durations of Leases and drains, and the proof that they keep two replicas apart.

A replica acts until `renew_s` after the start of its last renewal, on its own clock. The planner
reassigns its slots when it has seen its Lease unchanged for `lease_s` and `margin_s`, on its own
clock, counted from when it *saw* the renewal, which is later than its start. No two clocks are
compared. They may run at different rates: as long as

    renew_s × fastest/slowest rate  <  lease_s + margin_s

the replica has stopped before any other starts. `drift` is the rate error of each clock that is
still safe.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from kubeocean.errors import ConfigError

__all__ = ["Timing"]

_JITTER: Final = 1.2  # a renewal is tried after retry_s and up to a fifth


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """The periods of a ring, in seconds; all replicas of a ring have the same.

    - `lease_s`, `renew_s`, `retry_s`: as of a leader election.
    - `margin_s`: what the planner waits beyond a lease.
    - `drain_s`: how long a running reconcile may go on in a slot that moves; then it is cancelled.
    - `cancel_s`: how long a cancelled one may take; then the replica gives itself up.
    - `handover_s`: how long the planner waits for a living replica to let go; then it evicts it.
    - `forget_s`: how long the Lease of a replica that died is still shown after its last renewal.
    """

    lease_s: float = 15.0
    renew_s: float = 10.0
    retry_s: float = 2.0
    margin_s: float = 0.5
    drain_s: float = 30.0
    cancel_s: float = 5.0
    handover_s: float = 60.0
    forget_s: float = 0.0

    @property
    def patience_s(self) -> float:
        """Time for which a silent replica keeps its slots."""
        return self.lease_s + self.margin_s

    @property
    def drift(self) -> float:
        """By how much each clock's rate may be off, as a fraction, without two owners at once."""
        return (self.patience_s - self.renew_s) / (self.patience_s + self.renew_s)

    def validate(self) -> None:
        """See that the periods fit each other.

        :raises ConfigError: they do not; it names the key of the configuration file.
        """
        for field, value in (
            ("state.retryPeriod", self.retry_s),
            ("sharding.drainDeadline", self.drain_s),
            ("sharding.cancelDeadline", self.cancel_s),
        ):
            if not value > 0:
                raise ConfigError("must be more than 0", field=field, value=value)
        if self.margin_s < 0:
            raise ConfigError(
                "must not be negative", field="sharding.safetyMargin", value=self.margin_s
            )
        _more(self.renew_s, self.retry_s * _JITTER, "state.renewDeadline", "1.2 x retryPeriod")
        _more(self.lease_s, self.renew_s, "state.leaseDuration", "renewDeadline")
        least = self.drain_s + self.cancel_s
        _more(self.handover_s, least, "sharding.handoverDeadline", "drainDeadline + cancelDeadline")


def _more(value: float, least: float, field: str, what: str) -> None:
    if not value > least:
        raise ConfigError(f"must be more than {what} ({least:g})", field=field, value=value)
