"""Metrics of the proxier itself.

Labels are kinds of requests and reasons of refusals, never names of users, pods or nodes: the
number of series is fixed.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from kubeocean.runtime.metrics import SECONDS, Metrics

__all__ = ["KINDS", "REASONS", "ProxierMetrics"]

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


class ProxierMetrics:
    """The metrics of one proxier; every series is created at zero."""

    def __init__(self, metrics: Metrics | None = None) -> None:
        metrics = metrics or Metrics()
        requests = metrics.gauge(
            "kubeocean_proxier_sessions", "Requests that are being served", ["kind"]
        )
        seconds = metrics.histogram(
            "kubeocean_proxier_session_seconds",
            "Seconds to serve a request, from its head to its last byte",
            ["kind"],
            buckets=(*SECONDS, 3600.0),
        )
        relayed = metrics.counter(
            "kubeocean_proxier_bytes",
            "Bytes relayed from callers (in) and to callers (out)",
            ["kind", "direction"],
        )
        refusals = metrics.counter(
            "kubeocean_proxier_refusals", "Requests that were refused or failed", ["reason"]
        )
        self._in_progress = {kind: requests.labels(kind) for kind in KINDS}
        self._seconds = {kind: seconds.labels(kind) for kind in KINDS}
        self._received = {kind: relayed.labels(kind, "in") for kind in KINDS}
        self._sent = {kind: relayed.labels(kind, "out") for kind in KINDS}
        self._refusals = {reason: refusals.labels(reason) for reason in REASONS}
        self._connections = metrics.gauge(
            "kubeocean_proxier_connections", "Connections that are open"
        )
        self._rejected_connections = metrics.counter(
            "kubeocean_proxier_connections_turned_away",
            "Connections closed before a request: over a limit, failed handshake, shutdown",
        )
        self._not_after = metrics.gauge(
            "kubeocean_proxier_certificate_not_after_seconds",
            "Time at which the serving certificate expires, in seconds since 1970; 0 without one",
        )

    @contextmanager
    def track_request(self, kind: str) -> Iterator[None]:
        """Count a request and its time while it is being served."""
        with self._in_progress[kind].track_inprogress(), self._seconds[kind].time():
            yield

    def add_bytes(self, kind: str, *, received: int = 0, sent: int = 0) -> None:
        self._received[kind].inc(received)
        self._sent[kind].inc(sent)

    def count_refusal(self, status: int) -> None:
        self._refusals[_BY_STATUS.get(status, _OTHER)].inc()

    def set_connections(self, count: int) -> None:
        self._connections.set(count)

    def count_rejected_connection(self) -> None:
        self._rejected_connections.inc()

    def set_certificate_expiry(self, not_after: float) -> None:
        self._not_after.set(not_after)
