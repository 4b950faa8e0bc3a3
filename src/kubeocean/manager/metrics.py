"""Metrics of the manager, with the names of the earlier implementation."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from kubeocean.api.bindings import BindingPhase, ClusterBinding
from kubeocean.runtime.clock import instant_of
from kubeocean.runtime.informer import Informer
from kubeocean.runtime.metrics import Family, Metrics, Readings

__all__ = ["ManagerMetrics", "count", "expiries"]

_STATES: Final = ("Deleting", *map(str, BindingPhase))
_BINDINGS: Final = Family("kubeocean_clusterbindings_total", "Bindings by status", ("status",))
_EXPIRY: Final = Family(
    "kubeocean_worker_credential_expiration_timestamp_seconds",
    "When the credential of a binding's worker expires, as seconds since 1970",
    ("clusterbinding",),
)
# The default buckets of client_golang, which dashboards of the earlier implementation expect.
_BUCKETS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)


class ManagerMetrics:
    """Counts and times reconciles, and counts bindings by status."""

    def __init__(self, metrics: Metrics, bindings: Informer[ClusterBinding]) -> None:
        self.seconds = metrics.histogram(
            "kubeocean_manager_sync_duration_seconds",
            "Duration of a reconcile of a binding",
            (),
            _BUCKETS,
        )
        self._total = metrics.counter(
            "kubeocean_manager_sync_total", "Reconciles of a binding", ["clusterbinding"]
        )
        self._errors = metrics.counter(
            "kubeocean_manager_sync_errors_total",
            "Reconciles of a binding that failed",
            ["clusterbinding"],
        )
        self._bindings = bindings
        self._reports_bindings: Callable[[], bool] = lambda: True
        metrics.read_gauges([_BINDINGS, _EXPIRY], self._read)

    def share(self, reports_bindings: Callable[[], bool]) -> None:
        """Count bindings only while `reports_bindings` returns True; call before `run`."""
        self._reports_bindings = reports_bindings

    def reconciled(self, binding: str, seconds: float, *, failed: bool) -> None:
        """Record one reconcile of a binding."""
        self.seconds.observe(seconds)
        self._total.labels(binding).inc()
        self._errors.labels(binding).inc(int(failed))

    def forget(self, binding: str) -> None:
        """Remove the series of a deleted binding."""
        for counter in (self._total, self._errors):
            try:
                counter.remove(binding)
            except KeyError:
                continue

    def _read(self) -> Readings:
        if not self._reports_bindings():
            return {}
        bindings = list(self._bindings.items())
        return {_BINDINGS.name: count(bindings), _EXPIRY.name: expiries(bindings)}


def expiries(bindings: Iterable[ClusterBinding]) -> list[tuple[tuple[str], float]]:
    """Return when each credential expires whose expiry is known, by binding."""
    times = ((each.name, instant_of(each.status.credential_expiration_time)) for each in bindings)
    return [((name,), time.timestamp()) for name, time in times if time is not None]


def count(bindings: Iterable[ClusterBinding]) -> list[tuple[tuple[str], float]]:
    """Count the bindings of each status; a binding without a phase is Pending."""
    states = [
        "Deleting" if binding.deleting else binding.status.phase or str(BindingPhase.PENDING)
        for binding in bindings
    ]
    return [((state,), float(states.count(state))) for state in _STATES]
