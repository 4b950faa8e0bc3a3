"""Program of a sharded controller: connect, run the parts in the right order, report errors.

The module also exports the names of `kubeocean.runtime` that a controller needs, so that one import
line is enough:

    from kubeocean.sharding import PODS, ResourceHandler, Ring, ShardedController, connect, load
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any, Final

from kubeocean.errors import AlreadyExists, ApiError, ConfigError, Conflict, NotFound
from kubeocean.runtime.client import ApplyPatch, Client, MergePatch
from kubeocean.runtime.components import ServicePart
from kubeocean.runtime.controller import After, Done, Outcome, Stuck
from kubeocean.runtime.credentials import default_access
from kubeocean.runtime.kinds import CONFIG_MAPS, PODS, SECRETS, ConfigMap, Pod
from kubeocean.runtime.logs import get_logger
from kubeocean.runtime.objects import Json, Key, Object, Resource, Untyped
from kubeocean.runtime.service import Service, run
from kubeocean.runtime.transport import HttpTransport
from kubeocean.runtime.transport_layers import Fenced
from kubeocean.sharding.controller import ShardedController
from kubeocean.sharding.metrics import MetricsPage
from kubeocean.sharding.ring import Ring

__all__ = [
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
]

_DEADLINE_S: Final = 120.0  # for the hand-over of all shards when the program ends


def connect(
    kubeconfig: str | Path | None = None,
    *,
    context: str | None = None,
    field_manager: str = "kubeocean",
) -> Client:
    """Return a client for the cluster of the `kubeconfig` file; without one for that of
    $KUBECONFIG, of the ServiceAccount of the pod that this program runs in, or of ~/.kube/config,
    in this order.

    `field_manager` is the name under which the client writes. Programs that apply (`ApplyPatch`)
    to the same objects need different ones, or each removes the fields of the other.

    :raises ConfigError: none of these exists, or the one that is used is invalid.
    """
    return Client(HttpTransport(default_access(kubeconfig, context)), field_manager=field_manager)


async def serve(
    name: str,
    ring: Ring,
    controllers: Sequence[ShardedController[Any]],
    *,
    parts: Sequence[ServicePart] = (),
    deadline_s: float = _DEADLINE_S,
) -> int:
    """Run a ring with its controllers and its metrics page until SIGTERM; return the exit code.

    - `parts`: further components, which start before the controllers and stop after them.
    - `deadline_s`: how long the hand-over of all shards may take at the end.
    """
    # The last part stops first: the ring hands its shards over while the controllers still run.
    page = MetricsPage(ring.config, ring.metrics)
    service = Service(
        name,
        [page, *parts, *controllers, ring],
        metrics=ring.metrics,
        deadline_s=deadline_s,
    )
    return await service.run()


def run_program(main: Callable[[], Coroutine[None, None, int]]) -> int:
    """Run `main` in an event loop and return its result; an error in the configuration ends the
    program with one line and the exit code 1."""
    try:
        return run(main)
    except ConfigError as error:
        sys.stderr.write(f"error: {error}\n")
        return 1
