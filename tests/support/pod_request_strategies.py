"""Pods with all kinds of requests, as hypothesis strategies."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st

from kubeocean.runtime.objects import Json

__all__ = ["Drawn", "DrawnContainer", "drawn_pods"]

Milli = dict[str, int]
_RESOURCES = ("cpu", "memory", "hugepages-2Mi", "ephemeral-storage", "nvidia.com/gpu")


@dataclass(frozen=True)
class DrawnContainer:
    """A container: its requests, and the resources that it holds by its status."""

    name: str
    wants: Milli
    sidecar: bool | None  # None: not an init container
    holds: Milli | None
    infeasible: bool

    @property
    def counts(self) -> Milli:
        if self.holds is None or self.sidecar is False:
            return self.wants
        if self.infeasible:
            return self.holds
        names = {**self.wants, **self.holds}
        return {name: max(self.wants.get(name, 0), self.holds.get(name, 0)) for name in names}


@dataclass(frozen=True)
class Drawn:
    """A pod, and its document."""

    containers: list[DrawnContainer]
    inits: list[DrawnContainer]
    pod_level: Milli
    overhead: Milli
    ended: bool
    infeasible: bool

    @property
    def document(self) -> Json:
        conditions = [{"type": "PodResizePending", "status": "True", "reason": "Infeasible"}]
        return {
            "metadata": {"name": "drawn"},
            "spec": {
                "containers": [_container(each) for each in self.containers],
                "initContainers": [_container(each) for each in self.inits],
                "overhead": _written(self.overhead),
                "resources": {"requests": _written(self.pod_level)},
            },
            "status": {
                "phase": "Failed" if self.ended else "Running",
                "conditions": conditions if self.infeasible else [],
                "containerStatuses": _statuses(self.containers),
                "initContainerStatuses": _statuses(self.inits),
            },
        }


def _written(amounts: Milli) -> dict[str, str]:
    return {
        name: f"{amount}m" if amount % 1000 else f"{amount // 1000}"
        for name, amount in amounts.items()
    }


def _container(drawn: DrawnContainer) -> Json:
    content: Json = {"name": drawn.name, "resources": {"requests": _written(drawn.wants)}}
    return content | ({"restartPolicy": "Always"} if drawn.sidecar else {})


def _statuses(containers: list[DrawnContainer]) -> list[Json]:
    return [
        {"name": each.name, "resources": {"requests": _written(each.holds)}}
        for each in containers
        if each.holds is not None
    ]


def _amounts() -> st.SearchStrategy[Milli]:
    return st.dictionaries(st.sampled_from(_RESOURCES), st.integers(0, 5000), max_size=3).map(
        lambda drawn: {k: v // 1000 * 1000 if "/" in k else v for k, v in drawn.items()}
    )


@st.composite
def drawn_pods(draw: Any) -> Drawn:
    """Draw any pod that an API server could store, with or without sidecars and resizes."""
    infeasible = draw(st.booleans())

    def containers(prefix: str, *, init: bool) -> list[DrawnContainer]:
        return [
            DrawnContainer(
                name=f"{prefix}{index}",
                wants=draw(_amounts()),
                sidecar=draw(st.booleans()) if init else None,
                holds=draw(st.none() | _amounts()),
                infeasible=infeasible,
            )
            for index in range(draw(st.integers(0, 3)))
        ]

    return Drawn(
        containers=containers("c", init=False),
        inits=containers("i", init=True),
        pod_level=draw(st.just({}) | _amounts()),
        overhead=draw(st.just({}) | _amounts()),
        ended=draw(st.sampled_from([False] * 9 + [True])),
        infeasible=infeasible,
    )
