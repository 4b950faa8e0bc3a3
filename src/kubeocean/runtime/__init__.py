"""Kubernetes machinery without any leasing: clients, caches, controllers, election, events,
metrics.

The names exported here are those that a controller needs. A name is imported at its first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kubeocean.runtime._exports import lazy_exports

if TYPE_CHECKING:
    from kubeocean.runtime.client import Client, MergePatch, connect
    from kubeocean.runtime.controller import After, Controller, Done, Outcome, Stuck
    from kubeocean.runtime.informer import Informer
    from kubeocean.runtime.kinds import CONFIG_MAPS, PODS, Pod
    from kubeocean.runtime.logs import configure, get_logger
    from kubeocean.runtime.metrics import Metrics
    from kubeocean.runtime.objects import Json, Key, Resource
    from kubeocean.runtime.service import Service, run
else:
    __getattr__, __dir__ = lazy_exports(
        __name__,
        {
            "client": ("Client", "MergePatch", "connect"),
            "controller": ("After", "Controller", "Done", "Outcome", "Stuck"),
            "informer": ("Informer",),
            "kinds": ("CONFIG_MAPS", "PODS", "Pod"),
            "logs": ("configure", "get_logger"),
            "metrics": ("Metrics",),
            "objects": ("Json", "Key", "Resource"),
            "service": ("Service", "run"),
        },
    )

__all__ = [
    "CONFIG_MAPS",
    "PODS",
    "After",
    "Client",
    "Controller",
    "Done",
    "Informer",
    "Json",
    "Key",
    "MergePatch",
    "Metrics",
    "Outcome",
    "Pod",
    "Resource",
    "Service",
    "Stuck",
    "configure",
    "connect",
    "get_logger",
    "run",
]
