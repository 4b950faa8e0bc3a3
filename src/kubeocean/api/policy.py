"""Policies: what the owner of a worker cluster lends, when, and how it comes back.

A `ResourceLeasingPolicy` lives in the worker cluster and names its binding, which lives in the
computing cluster, by that binding's object name. These are views: what the server holds, as it is
written there, with the fields that we know. What it means is for `leasing` to say.
"""

from __future__ import annotations

from typing import Final

import msgspec

from kubeocean.runtime.objects import Condition, Json, Object, Resource

__all__ = [
    "RESOURCE_LEASING_POLICIES",
    "Eviction",
    "PolicySpec",
    "PolicyStatus",
    "ReclaimStatus",
    "ResourceLeasingPolicy",
    "ResourceLimit",
    "TimeWindow",
]


class TimeWindow(msgspec.Struct, frozen=True, gc=False, rename="camel", omit_defaults=True):
    """From a minute of the day to another, on some days of the week; no days means every day."""

    start: str = ""
    end: str = ""
    days: tuple[str, ...] | None = None


class ResourceLimit(msgspec.Struct, frozen=True, gc=False, rename="camel", omit_defaults=True):
    """At most so much of a resource: an amount, a share of what is left over, or both."""

    resource: str = ""
    quantity: str | int | float | None = None
    percent: int | None = None


class PolicySpec(msgspec.Struct, frozen=True, gc=False, rename="camel", omit_defaults=True):
    """What the owner wants."""

    cluster: str = ""  # the name of the ClusterBinding, not its clusterID
    node_selector: Json | None = None  # read by `NodeSelector.from_document`; none means all nodes
    time_windows: tuple[TimeWindow, ...] | None = None  # none, or empty, means always
    resource_limits: tuple[ResourceLimit, ...] | None = None
    force_reclaim: bool = False
    graceful_reclaim_period_seconds: int = 0
    # The rest is new: an installation of the earlier implementation does not know these.
    time_zone: str = ""  # IANA; empty means the zone of the process
    force_reclaim_deadline_seconds: int | None = None
    max_evictions_per_minute: int | None = None
    cool_down_seconds: int = 0


class Eviction(msgspec.Struct, frozen=True, gc=False, rename="camel", omit_defaults=True):
    """A pod that had to go, when, and why."""

    namespace: str = ""
    name: str = ""
    node: str = ""
    time: str | None = None
    reason: str = ""
    message: str = ""


class ReclaimStatus(msgspec.Struct, frozen=True, gc=False, rename="camel", omit_defaults=True):
    """How the way back goes: pods to evict, evicted, and held back by a disruption budget."""

    start_time: str | None = None
    eviction_time: str | None = None
    deadline_time: str | None = None
    completion_time: str | None = None
    pending: int = 0
    evicted: int = 0
    blocked: int = 0
    last_evictions: tuple[Eviction, ...] | None = None


class PolicyStatus(msgspec.Struct, frozen=True, gc=False, rename="camel", omit_defaults=True):
    """What we made of it."""

    phase: str = ""
    conditions: tuple[Condition, ...] | None = None
    last_applied_time: str | None = None
    active_time_window: bool = False
    observed_generation: int = 0
    next_transition_time: str | None = None
    leased_nodes: int = 0
    reclaim: ReclaimStatus | None = None


class ResourceLeasingPolicy(Object, frozen=True, gc=False, rename="camel", kw_only=True):
    """A policy."""

    spec: PolicySpec = msgspec.field(default_factory=PolicySpec)
    status: PolicyStatus = msgspec.field(default_factory=PolicyStatus)


RESOURCE_LEASING_POLICIES: Final = Resource(
    "cloud.tencent.com",
    "v1beta1",
    "resourceleasingpolicies",
    "ResourceLeasingPolicy",
    False,
    ResourceLeasingPolicy,
)
