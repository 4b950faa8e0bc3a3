"""Figures: what the manager counts, under the names that it always had."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from kubeocean.api.binding import BindingPhase, ClusterBinding
from kubeocean.runtime.informer import Informer
from kubeocean.runtime.metrics import Family, Metrics, Readings

__all__ = ["Figures", "count"]

_STATES: Final = ("Deleting", *map(str, BindingPhase))
_BINDINGS: Final = Family("kubeocean_clusterbindings_total", "Bindings by status", ("status",))
# Those of client_golang, which dashboards of the earlier implementation expect.
_BUCKETS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)


class Figures:
    """Turns of bindings, and bindings by status."""

    def __init__(self, metrics: Metrics, bindings: Informer[ClusterBinding]) -> None:
        self.seconds = metrics.histogram(
            "kubeocean_manager_sync_duration_seconds", "Seconds of a turn", (), _BUCKETS
        )
        self._total = metrics.counter(
            "kubeocean_manager_sync_total", "Turns of a binding", ["clusterbinding"]
        )
        self._errors = metrics.counter(
            "kubeocean_manager_sync_errors_total", "Turns that failed", ["clusterbinding"]
        )
        self._bindings = bindings
        self._tells: Callable[[], bool] = lambda: True
        metrics.read_gauges([_BINDINGS], self._read)

    def share(self, tells: Callable[[], bool]) -> None:
        """Count bindings only while this says so; before anything runs."""
        self._tells = tells

    def turn(self, binding: str, seconds: float, *, failed: bool) -> None:
        """A binding had its turn."""
        self.seconds.observe(seconds)
        self._total.labels(binding).inc()
        self._errors.labels(binding).inc(int(failed))

    def forget(self, binding: str) -> None:
        """It is gone, and so are its series."""
        for counter in (self._total, self._errors):
            try:
                counter.remove(binding)
            except KeyError:
                continue

    def _read(self) -> Readings:
        if not self._tells():
            return {}
        return {_BINDINGS.name: count(list(self._bindings.items()))}


def count(bindings: Iterable[ClusterBinding]) -> list[tuple[tuple[str], float]]:
    """How many bindings there are of each status; who says nothing yet is Pending."""
    states = [
        "Deleting" if each.deleting else each.status.phase or str(BindingPhase.PENDING)
        for each in bindings
    ]
    return [((state,), float(states.count(state))) for state in _STATES]
