"""Figures: what the proxier counts of its own work.

Series are as many as there are kinds of sessions and reasons: no name of a user, pod or node is in
one, however many there are.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from kubeocean.runtime.metrics import SECONDS, Metrics

__all__ = ["KINDS", "REASONS", "Figures"]

KINDS: Final = ("logs", "exec", "attach", "portforward", "run", "page")
_BY_STATUS: Final = {
    400: "bad_request",
    401: "unauthenticated",
    403: "forbidden",
    404: "not_found",
    405: "bad_method",
    429: "too_many",
    431: "too_large",
    500: "failed",
    502: "worker",
    503: "unavailable",
    505: "bad_request",
}
_OTHER: Final = "other"
REASONS: Final = tuple(dict.fromkeys((*_BY_STATUS.values(), _OTHER)))


class Figures:
    """Counters of one proxier, all of them there from the start."""

    def __init__(self, metrics: Metrics | None = None) -> None:
        metrics = metrics or Metrics()
        open_now = metrics.gauge(
            "kubeocean_proxier_sessions", "Requests that are being served", ["kind"]
        )
        seconds = metrics.histogram(
            "kubeocean_proxier_session_seconds",
            "How long it took to serve a request, from its head to its last byte",
            ["kind"],
            buckets=(*SECONDS, 3600.0),
        )
        carried = metrics.counter(
            "kubeocean_proxier_bytes",
            "Bytes carried from callers (in) and to them (out)",
            ["kind", "direction"],
        )
        refusals = metrics.counter(
            "kubeocean_proxier_refusals", "Requests that were refused, or failed", ["reason"]
        )
        self._open = {kind: open_now.labels(kind) for kind in KINDS}
        self._seconds = {kind: seconds.labels(kind) for kind in KINDS}
        self._in = {kind: carried.labels(kind, "in") for kind in KINDS}
        self._out = {kind: carried.labels(kind, "out") for kind in KINDS}
        self._refusals = {reason: refusals.labels(reason) for reason in REASONS}
        self._connections = metrics.gauge(
            "kubeocean_proxier_connections", "Connections that are open"
        )
        self._turned_away = metrics.counter(
            "kubeocean_proxier_connections_turned_away",
            "Connections for which there was no room, or that came at the end",
        )
        self._not_after = metrics.gauge(
            "kubeocean_proxier_certificate_not_after_seconds",
            "When the certificate that is shown ends, in seconds since 1970; 0 without one",
        )

    @contextmanager
    def session(self, kind: str) -> Iterator[None]:
        """Count a request while it is being served."""
        with self._open[kind].track_inprogress(), self._seconds[kind].time():
            yield

    def carried(self, kind: str, *, inwards: int = 0, outwards: int = 0) -> None:
        """Count bytes."""
        self._in[kind].inc(inwards)
        self._out[kind].inc(outwards)

    def refused(self, status: int) -> None:
        """Count an answer that is an error."""
        self._refusals[_BY_STATUS.get(status, _OTHER)].inc()

    def connections(self, count: int) -> None:
        self._connections.set(count)

    def turned_away(self) -> None:
        self._turned_away.inc()

    def certificate(self, not_after: float) -> None:
        self._not_after.set(not_after)
