"""Endings: whether a binding that is deleted may go.

Pure. It waits for its syncer, which takes back nodes and pods by rules that end. While a syncer
leads, they are in its hands. If none has led for `deadline_s` the binding goes without, and so it
does at once if an annotation says so; both are told, with what nobody has confirmed.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from kubeocean.api.binding import ClusterBinding
from kubeocean.api.group import TRUE, Domain
from kubeocean.leasing.instants import text_of
from kubeocean.manager.leaders import Leader

__all__ = ["DEADLINE_S", "Go", "Wait", "decide", "forced", "left_behind"]

DEADLINE_S: Final = 300.0


@dataclass(frozen=True, slots=True)
class Wait:
    """Not yet; `until` when at the latest, if nobody else comes to decide it."""

    waits: str
    until: datetime | None = None


@dataclass(frozen=True, slots=True)
class Go:
    """Now; `unconfirmed` says why nobody has confirmed that all is cleared up."""

    unconfirmed: str = ""


def forced(binding: ClusterBinding, domain: Domain) -> bool:
    """Whether somebody does not want to wait."""
    return binding.annotations.get(domain.force_deletion, "").lower() == TRUE


def decide(
    binding: ClusterBinding, leader: Leader, *, now: datetime, deadline_s: float, domain: Domain
) -> Wait | Go:
    """Whether the syncer is still waited for."""
    if domain.finalizer_syncer not in (binding.metadata.finalizers or ()):
        return Go()
    if forced(binding, domain):
        return Go("the wait was ended by force")
    if leader.leads:
        return Wait("its syncer takes back nodes and pods; the condition Drained says what is left")
    deleted = datetime.fromisoformat(binding.metadata.deletion_timestamp or text_of(now))
    since = max(deleted, leader.silent_since or deleted)
    until = since + timedelta(seconds=deadline_s)
    if now >= until:
        return Go(f"no syncer has been at work since {text_of(since)}")
    return Wait(
        f"no syncer is at work since {text_of(since)} to take back nodes and pods; given up at"
        f" {text_of(until)}, or at once with the annotation {domain.force_deletion}={TRUE}",
        until,
    )


def left_behind(binding: ClusterBinding, vnodes: int, domain: Domain) -> str:
    """What may be left where nobody has confirmed that it is gone."""
    cluster_id = binding.spec.cluster_id
    removed = f"{vnodes} virtual nodes were removed; " if vnodes else ""
    return (
        f"{removed}pods of this binding may still run in the worker, with copies of ConfigMaps,"
        f" Secrets and claims beside them; our label may be on its nodes, our finalizer on its"
        f" policies; in the computing cluster, objects labelled {domain.synced_by(cluster_id)} may"
        f" carry the finalizer {domain.finalizer_for(cluster_id)}"
    )
