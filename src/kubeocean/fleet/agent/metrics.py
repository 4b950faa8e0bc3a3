"""Metrics of a member agent."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from kubeocean.api.fleet.conditions import AgentReason
from kubeocean.runtime.metrics import Metrics
from kubeocean.runtime.objects import Condition

__all__ = ["AgentMetrics"]

_SUCCESS: Final = "success"
_FAILURE: Final = "failure"
# Reasons of the condition Joined: which metric, and with which result
_OUTCOMES: Final = {
    AgentReason.JOINED: ("join", _SUCCESS),
    AgentReason.FAILED_TO_JOIN: ("join", _FAILURE),
    AgentReason.LEFT: ("leave", _SUCCESS),
    AgentReason.FAILED_TO_LEAVE: ("leave", _FAILURE),
}


class AgentMetrics:
    """Counts joins, leaves and heartbeats; metrics of joins and leaves have KubeFleet's names."""

    def __init__(self, metrics: Metrics) -> None:
        # Gauges, because the names of Prometheus counters end with _total and KubeFleet's do not.
        self._results = {
            action: metrics.gauge(f"{action}_result_counter", meaning, ["result"])
            for action, meaning in (
                ("join", "Times that the member joined or failed to join"),
                ("leave", "Times that the member left or failed to leave"),
            )
        }
        for gauge in self._results.values():
            for result in (_SUCCESS, _FAILURE):
                gauge.labels(result)
        heartbeats = metrics.counter(
            "kubeocean_fleet_heartbeats_total",
            "Heartbeats by whether they were written",
            ["result"],
        )
        self._heartbeats = {each: heartbeats.labels(each) for each in (_SUCCESS, _FAILURE)}

    def joined_changed(self, condition: Condition) -> None:
        """Count a change of the agent's condition Joined."""
        for reason, (action, result) in _OUTCOMES.items():
            if condition.reason == reason:
                self._results[action].labels(result).inc()

    @contextmanager
    def heartbeat(self) -> Iterator[None]:
        """Count the heartbeat that the code inside the `with` block writes."""
        result = _FAILURE
        try:
            yield
            result = _SUCCESS
        finally:
            self._heartbeats[result].inc()
