"""Counted pods: the least of a pod that its requests can be counted from.

A worker is full of pods of other people. They are decoded to this, counted and forgotten: names of
images, environments, volumes and most of their status are never held.
"""

from __future__ import annotations

from typing import Final

import msgspec

from kubeocean.runtime.objects import Condition, Object, Resource

__all__ = [
    "COUNTED_PODS",
    "CountedContainer",
    "CountedContainerStatus",
    "CountedPod",
    "CountedPodSpec",
    "CountedPodStatus",
    "CountedResources",
]


class CountedResources(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """What is asked for, as written; limits are not counted."""

    requests: dict[str, str | int | float] | None = None


class CountedContainer(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """A container, or an init container."""

    name: str = ""
    resources: CountedResources | None = None
    restart_policy: str | None = None


class CountedContainerStatus(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """What a container was given."""

    name: str = ""
    resources: CountedResources | None = None
    allocated_resources: dict[str, str | int | float] | None = None


class CountedPodSpec(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """Where a pod is, and what it asks for."""

    node_name: str = ""
    containers: tuple[CountedContainer, ...] | None = None
    init_containers: tuple[CountedContainer, ...] | None = None
    overhead: dict[str, str | int | float] | None = None
    resources: CountedResources | None = None


class CountedPodStatus(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """Whether it has ended, and what it was given."""

    phase: str = ""
    conditions: tuple[Condition, ...] | None = None
    container_statuses: tuple[CountedContainerStatus, ...] | None = None
    init_container_statuses: tuple[CountedContainerStatus, ...] | None = None


class CountedPod(Object, frozen=True, gc=False, rename="camel", kw_only=True):
    """A pod, as far as its requests need it."""

    spec: CountedPodSpec = msgspec.field(default_factory=CountedPodSpec)
    status: CountedPodStatus = msgspec.field(default_factory=CountedPodStatus)


COUNTED_PODS: Final = Resource("", "v1", "pods", "Pod", True, CountedPod)
