"""Timing: durations of Leases and drains, and the proof that no two replicas own a slot at once.

A replica acts until `renew_s` after the start of its last renewal, on the replica's clock. The
planner reassigns the replica's slots when the planner has seen the Lease unchanged for `lease_s`
and `margin_s`, on the planner's clock, counted from when the planner *saw* the renewal, which is
later than its start. No two clocks are compared. Clocks may run at different rates: as long as

    renew_s × fastest/slowest rate  <  lease_s + margin_s

the replica has stopped before any other starts. `drift` is the rate error of each clock that is
still safe.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from kubeocean.errors import ConfigError

__all__ = ["Timing"]

_JITTER: Final = 1.2  # a renewal starts after retry_s, or up to a fifth later


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """Durations of Leases and hand-overs in a ring, in seconds; all replicas have the same.

    - `lease_s`, `renew_s`, `retry_s`: as in a leader election.
    - `margin_s`: how long the planner waits after a Lease has expired.
    - `drain_s`: how long a running reconcile may go on in a slot that moves; then it is cancelled.
    - `cancel_s`: how long a cancelled reconcile may take to end; then the replica gives up.
    - `handover_s`: how long the planner waits for a live replica to hand over a slot; then the
      planner evicts the replica.
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
        """How long a replica that does not renew its Lease keeps its slots."""
        return self.lease_s + self.margin_s

    @property
    def drift(self) -> float:
        """How much each clock's rate may be off, as a fraction, without two owners of a slot at
        once."""
        return (self.patience_s - self.renew_s) / (self.patience_s + self.renew_s)

    def validate(self) -> None:
        """Check that the durations fit each other.

        :raises ConfigError: they do not; names the key of the configuration file.
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
        raise ConfigError(
            f"must be more than {what} ({least:g}s)", field=field, value=f"{value:g}s"
        )
