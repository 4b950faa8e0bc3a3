"""Sharding: all replicas of a controller work at the same time, and never two of them on one key.

A ring is the group of replicas that share the keys of a controller. Every key belongs to one slot
for ever; one table records the owner of each slot. The package is usable by any controller. A name
exported here is imported at its first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kubeocean.runtime._exports import lazy_exports

if TYPE_CHECKING:
    from kubeocean.sharding.admin import RingAdmin, RingState, find_rings
    from kubeocean.sharding.admission import admission_objects, guard
    from kubeocean.sharding.algorithms.base import Algorithm
    from kubeocean.sharding.config import Config, load
    from kubeocean.sharding.controller import Children, ShardedController
    from kubeocean.sharding.exclusive_start import ExclusiveStart
    from kubeocean.sharding.fencing import NotOurs
    from kubeocean.sharding.handlers import Change, ResourceHandler
    from kubeocean.sharding.metrics import MetricsPage
    from kubeocean.sharding.names import Names
    from kubeocean.sharding.nodes import NodeInfo, NodeWatcher
    from kubeocean.sharding.program import (
        CONFIG_MAPS,
        PODS,
        SECRETS,
        After,
        AlreadyExists,
        ApiError,
        ApplyPatch,
        Client,
        ConfigError,
        ConfigMap,
        Conflict,
        Done,
        Fenced,
        Json,
        Key,
        MergePatch,
        NotFound,
        Object,
        Outcome,
        Pod,
        Resource,
        Stuck,
        Untyped,
        connect,
        get_logger,
        run_program,
        serve,
    )
    from kubeocean.sharding.ring import GaveUp, Ring
    from kubeocean.sharding.shared_controllers import SharedControllers
    from kubeocean.sharding.stores import StateStore
    from kubeocean.sharding.workloads import ShardNotifier
else:
    __getattr__, __dir__ = lazy_exports(
        __name__,
        {
            "admin": ("RingAdmin", "RingState", "find_rings"),
            "admission": ("admission_objects", "guard"),
            "algorithms.base": ("Algorithm",),
            "config": ("Config", "load"),
            "controller": ("Children", "ShardedController"),
            "exclusive_start": ("ExclusiveStart",),
            "fencing": ("NotOurs",),
            "handlers": ("Change", "ResourceHandler"),
            "metrics": ("MetricsPage",),
            "names": ("Names",),
            "nodes": ("NodeInfo", "NodeWatcher"),
            "program": (
                "CONFIG_MAPS",
                "PODS",
                "SECRETS",
                "After",
                "AlreadyExists",
                "ApiError",
                "ApplyPatch",
                "Client",
                "ConfigError",
                "ConfigMap",
                "Conflict",
                "Done",
                "Fenced",
                "Json",
                "Key",
                "MergePatch",
                "NotFound",
                "Object",
                "Outcome",
                "Pod",
                "Resource",
                "Stuck",
                "Untyped",
                "connect",
                "get_logger",
                "run_program",
                "serve",
            ),
            "ring": ("GaveUp", "Ring"),
            "shared_controllers": ("SharedControllers",),
            "stores": ("StateStore",),
            "workloads": ("ShardNotifier",),
        },
    )

__all__ = [
    "CONFIG_MAPS",
    "PODS",
    "SECRETS",
    "After",
    "Algorithm",
    "AlreadyExists",
    "ApiError",
    "ApplyPatch",
    "Change",
    "Children",
    "Client",
    "Config",
    "ConfigError",
    "ConfigMap",
    "Conflict",
    "Done",
    "ExclusiveStart",
    "Fenced",
    "GaveUp",
    "Json",
    "Key",
    "MergePatch",
    "MetricsPage",
    "Names",
    "NodeInfo",
    "NodeWatcher",
    "NotFound",
    "NotOurs",
    "Object",
    "Outcome",
    "Pod",
    "Resource",
    "ResourceHandler",
    "Ring",
    "RingAdmin",
    "RingState",
    "ShardNotifier",
    "ShardedController",
    "SharedControllers",
    "StateStore",
    "Stuck",
    "Untyped",
    "admission_objects",
    "connect",
    "find_rings",
    "get_logger",
    "guard",
    "load",
    "run_program",
    "serve",
]
