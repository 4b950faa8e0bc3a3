"""ResourceLeasingPolicies: which nodes an owner lends, when, and how they are reclaimed.

A `ResourceLeasingPolicy` is an object of the worker cluster and names its ClusterBinding, an object
of the computing cluster. The classes are views of stored objects, with the fields that Kubeocean
reads; `leasing` interprets them.

`problems` lists the mistakes in a policy. An API server with the CustomResourceDefinition refuses
most of them; older objects may have them, and some cannot be expressed in a definition.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from enum import StrEnum
from typing import Final

import msgspec

from kubeocean.api.group import GROUP, VERSION
from kubeocean.api.validation import Problem, empty, unreadable_selector, zone_names
from kubeocean.errors import ConfigError
from kubeocean.runtime.objects import Condition, Json, Object, Resource
from kubeocean.runtime.quantity import ZERO, Quantity

__all__ = [
    "DAYS",
    "DAY_HINT",
    "RESOURCE_LEASING_POLICIES",
    "SHOWN",
    "TIME_HINT",
    "TIME_OF_DAY",
    "ZONE_HINT",
    "Eviction",
    "PolicyPhase",
    "PolicySpec",
    "PolicyStatus",
    "ReclaimNode",
    "ReclaimPod",
    "ReclaimSpec",
    "ReclaimStatus",
    "ResourceLeasingPolicy",
    "ResourceLimit",
    "TimeWindow",
    "problems",
]

DAYS: Final = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
TIME_OF_DAY: Final = "([01][0-9]|2[0-3]):[0-5][0-9]"
_TIME_OF_DAY: Final = re.compile(TIME_OF_DAY)

# Hints for users; API servers answer with the same texts
TIME_HINT: Final = "must be a time of day as HH:MM, from 00:00 to 23:59"
DAY_HINT: Final = "must be a day of the week in English, such as Monday"
ZONE_HINT: Final = "must be an IANA time zone such as Europe/Berlin, Asia/Shanghai or UTC"


SHOWN: Final = 20  # nodes, pods and evictions that a status names; further ones are only counted


class PolicyPhase(StrEnum):
    """Values of a policy's `status.phase`; a policy is `PENDING` until a syncer has read it."""

    PENDING = "Pending"
    ACTIVE = "Active"
    INACTIVE = "Inactive"
    FAILED = "Failed"


class TimeWindow(msgspec.Struct, frozen=True, gc=False, rename="camel", omit_defaults=True):
    """A time window from one minute of the day to another, on `days`; no days means every day."""

    start: str = ""
    end: str = ""
    days: tuple[str, ...] | None = None


class ResourceLimit(msgspec.Struct, frozen=True, gc=False, rename="camel", omit_defaults=True):
    """The maximum that is lent of a resource: an amount, a percentage of the unused, or both."""

    resource: str = ""
    quantity: str | int | float | None = None
    percent: int | None = None


class ReclaimSpec(msgspec.Struct, frozen=True, gc=False, rename="camel", omit_defaults=True):
    """Options of a ResourceLeasingPolicy for reclaiming nodes."""

    respect_tolerations: bool | None = None  # None means true, as in the earlier implementation


class PolicySpec(msgspec.Struct, frozen=True, gc=False, rename="camel", omit_defaults=True):
    """Spec of a ResourceLeasingPolicy."""

    cluster: str = ""  # the name of the ClusterBinding, not its clusterID
    node_selector: Json | None = None  # read by `NodeSelector.from_document`; none means all nodes
    time_windows: tuple[TimeWindow, ...] | None = None  # none, or empty, means always
    resource_limits: tuple[ResourceLimit, ...] | None = None
    force_reclaim: bool = False
    graceful_reclaim_period_seconds: int = 0
    # The following fields are new: the earlier implementation does not have them.
    time_zone: str = ""  # IANA; empty means the zone of the process
    force_reclaim_deadline_seconds: int | None = None
    max_evictions_per_minute: int | None = None
    cool_down_seconds: int = 0
    reclaim: ReclaimSpec | None = None

    @property
    def respects_tolerations(self) -> bool:
        """Whether pods that tolerate the taint of a closed window may stay; true by default."""
        return self.reclaim is None or self.reclaim.respect_tolerations is not False


class Eviction(msgspec.Struct, frozen=True, gc=False, rename="camel", omit_defaults=True):
    """A pod that was evicted or deleted, with the time and the reason."""

    namespace: str = ""
    name: str = ""
    node: str = ""
    time: str | None = None
    reason: str = ""
    message: str = ""


class ReclaimNode(msgspec.Struct, frozen=True, gc=False, rename="camel", omit_defaults=True):
    """A virtual node that is being reclaimed: start, cause, and number of pods that still run."""

    name: str = ""
    cause: str = ""
    phase: str = ""
    since: str | None = None
    pending: int = 0


class ReclaimPod(msgspec.Struct, frozen=True, gc=False, rename="camel", omit_defaults=True):
    """A pod that is still on a node that is being reclaimed, the reason, and the latest end."""

    namespace: str = ""
    name: str = ""
    node: str = ""
    reason: str = ""
    until: str | None = None


class ReclaimStatus(msgspec.Struct, frozen=True, gc=False, rename="camel", omit_defaults=True):
    """Progress of a reclaim: pods to evict, evicted, and blocked by a disruption budget.

    The lists have the first `SHOWN` entries; the numbers count all.
    """

    cause: str = ""
    start_time: str | None = None
    eviction_time: str | None = None
    deadline_time: str | None = None
    completion_time: str | None = None
    pending_nodes: int = 0
    pending: int = 0
    evicted: int = 0
    blocked: int = 0
    nodes: tuple[ReclaimNode, ...] | None = None
    pods: tuple[ReclaimPod, ...] | None = None
    last_evictions: tuple[Eviction, ...] | None = None


class PolicyStatus(msgspec.Struct, frozen=True, gc=False, rename="camel", omit_defaults=True):
    """Status of a ResourceLeasingPolicy."""

    phase: str = ""
    conditions: tuple[Condition, ...] | None = None
    last_applied_time: str | None = None
    active_time_window: bool = False
    observed_generation: int = 0
    next_transition_time: str | None = None
    leased_nodes: int = 0
    force_reclaim_time: str | None = None
    reclaim: ReclaimStatus | None = None


class ResourceLeasingPolicy(Object, frozen=True, gc=False, rename="camel", kw_only=True):
    """A ResourceLeasingPolicy: which nodes the owner of a worker lends to a binding, and when."""

    spec: PolicySpec = msgspec.field(default_factory=PolicySpec)
    status: PolicyStatus = msgspec.field(default_factory=PolicyStatus)


RESOURCE_LEASING_POLICIES: Final = Resource(
    GROUP, VERSION, "resourceleasingpolicies", "ResourceLeasingPolicy", False, ResourceLeasingPolicy
)


def problems(spec: PolicySpec) -> tuple[Problem, ...]:
    """Return all problems of a ResourceLeasingPolicy's spec, in the order of the fields.

    The CustomResourceDefinition refuses all problems that block, except labels that no node can
    have and exponents that no quantity has. The other problems are probable mistakes: their
    messages describe how the value is interpreted, which is always the way that lends less.
    """
    return tuple(_problems(spec))


def _problems(spec: PolicySpec) -> Iterator[Problem]:
    yield from empty("spec.cluster", spec.cluster, "a ClusterBinding")
    yield from unreadable_selector("spec.nodeSelector", spec.node_selector)
    for index, window in enumerate(spec.time_windows or ()):
        yield from _window_problems(f"spec.timeWindows[{index}]", window)
    limits = spec.resource_limits or ()
    for index, limit in enumerate(limits):
        earlier = any(each.resource == limit.resource for each in limits[:index])
        yield from _limit_problems(f"spec.resourceLimits[{index}]", limit, earlier=earlier)
    if spec.graceful_reclaim_period_seconds > 0 and not spec.force_reclaim:
        yield Problem(
            "spec.gracefulReclaimPeriodSeconds",
            spec.graceful_reclaim_period_seconds,
            "has no effect without spec.forceReclaim: pods stay until they end",
            blocks=False,
        )
    if spec.graceful_reclaim_period_seconds < 0:
        yield Problem(
            "spec.gracefulReclaimPeriodSeconds",
            spec.graceful_reclaim_period_seconds,
            "must be zero or more; taken for 0",
            blocks=False,
        )
    if spec.time_zone and spec.time_zone not in zone_names():
        yield Problem("spec.timeZone", spec.time_zone, ZONE_HINT)
    yield from _below("spec.forceReclaimDeadlineSeconds", spec.force_reclaim_deadline_seconds, 0)
    yield from _below("spec.maxEvictionsPerMinute", spec.max_evictions_per_minute, 1)
    yield from _below("spec.coolDownSeconds", spec.cool_down_seconds, 0)


def _window_problems(field: str, window: TimeWindow) -> Iterable[Problem]:
    for name, time in (("start", window.start), ("end", window.end)):
        if not _TIME_OF_DAY.fullmatch(time):
            yield Problem(f"{field}.{name}", time, TIME_HINT)
    if window.start == window.end:
        reason = "is the minute of the start as well: this window is one minute long"
        yield Problem(f"{field}.end", window.end, reason, blocks=False)
    for index, day in enumerate(window.days or ()):
        if day.lower() not in DAYS:
            yield Problem(f"{field}.days[{index}]", day, DAY_HINT)


def _limit_problems(field: str, limit: ResourceLimit, *, earlier: bool) -> Iterable[Problem]:
    if not limit.resource:
        reason = "must name a resource such as cpu"
        yield Problem(f"{field}.resource", limit.resource, reason, blocks=False)
    elif earlier:
        reason = "has an earlier limit in the list, too: both apply, one after the other"
        yield Problem(f"{field}.resource", limit.resource, reason, blocks=False)
    if limit.quantity is None and limit.percent is None:
        reason = "has neither a quantity nor a percent: nothing of this resource is lent"
        yield Problem(f"{field}.resource", limit.resource, reason, blocks=False)
    if limit.quantity is not None:
        yield from _quantity_problems(f"{field}.quantity", limit.quantity)
    if limit.percent is not None and limit.percent > 100:
        yield Problem(f"{field}.percent", limit.percent, "must be between 1 and 100")
    if limit.percent is not None and limit.percent < 1:
        reason = "must be between 1 and 100; nothing of this resource is lent"
        yield Problem(f"{field}.percent", limit.percent, reason, blocks=False)


def _quantity_problems(field: str, written: str | int | float) -> Iterable[Problem]:
    try:
        quantity = Quantity.parse(written)
    except ConfigError:
        yield Problem(field, written, "must be a quantity such as 500m, 2 or 1.5Gi")
        return
    if quantity < ZERO:
        yield Problem(field, written, "must be zero or more")
    if quantity == ZERO:
        yield Problem(field, written, "nothing of this resource is lent", blocks=False)


def _below(field: str, number: int | None, least: int) -> Iterable[Problem]:
    if number is not None and number < least:
        yield Problem(field, number, f"must be at least {least}")
