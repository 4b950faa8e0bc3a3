"""Worked cases of the capacity that a virtual node offers, computed by hand.

A case has documents as API servers store them, so that the same table tests the pure functions and
real clusters. Where `plain` is not set, a real server would refuse the documents or add defaults.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from kubeocean.runtime.objects import Json

__all__ = ["CASES", "Case", "container", "pod"]

NODE = {"cpu": "4", "memory": "8Gi", "pods": "110"}


@dataclass(frozen=True)
class Case:
    """A node, the pods on it, and the amounts that are offered under these limits."""

    name: str
    offered: dict[str, str]
    allocatable: dict[str, str] = field(default_factory=lambda: dict(NODE))
    capacity: dict[str, str] = field(default_factory=lambda: dict(NODE))
    others: tuple[Json, ...] = ()
    ours: tuple[Json, ...] = ()
    limits: tuple[Json, ...] = ()
    plain: bool = True

    def __str__(self) -> str:
        return self.name


def container(name: str = "app", **requests: str) -> Json:
    written = {key.replace("_", "-"): value for key, value in requests.items()}
    return {"name": name, "image": "registry.example/app", "resources": {"requests": written}}


def init(name: str = "init", **requests: str) -> Json:
    return container(name, **requests)


def sidecar(name: str = "sidecar", **requests: str) -> Json:
    return container(name, **requests) | {"restartPolicy": "Always"}


def gpu(count: str) -> Json:
    resources = {"requests": {"nvidia.com/gpu": count}, "limits": {"nvidia.com/gpu": count}}
    return {"name": "app", "image": "registry.example/app", "resources": resources}


def pod(
    *containers: Json, inits: tuple[Json, ...] = (), status: Json | None = None, **spec: object
) -> Json:
    content: Json = {"containers": list(containers), **spec}
    if inits:
        content["initContainers"] = list(inits)
    return {"spec": content, "status": status or {}}


CASES: tuple[Case, ...] = (
    Case(
        "an empty node without limits is lent whole", {"cpu": "4", "memory": "8Gi", "pods": "110"}
    ),
    Case(
        "what pods of others request is not lent",
        {"cpu": "2500m", "memory": "7Gi", "pods": "108"},
        others=(pod(container(cpu="1")), pod(container(cpu="500m", memory="1Gi"))),
    ),
    Case(
        "a quantity is the most that is lent",
        {"cpu": "2", "memory": "8Gi", "pods": "110"},
        limits=({"resource": "cpu", "quantity": "2"},),
    ),
    Case(
        "a quantity above what is left over changes nothing",
        {"cpu": "1", "memory": "8Gi", "pods": "109"},
        others=(pod(container(cpu="3")),),
        limits=({"resource": "cpu", "quantity": "2"},),
    ),
    Case(
        "a percentage is of what is left over, not of the node",
        {"cpu": "1500m", "memory": "8Gi", "pods": "109"},
        others=(pod(container(cpu="1")),),
        limits=({"resource": "cpu", "percent": 50},),
    ),
    Case(
        "of a quantity and a percentage the smaller counts: the quantity",
        {"cpu": "1", "memory": "8Gi", "pods": "110"},
        limits=({"resource": "cpu", "quantity": "1", "percent": 50},),
    ),
    Case(
        "of a quantity and a percentage the smaller counts: the percentage",
        {"cpu": "2", "memory": "8Gi", "pods": "110"},
        limits=({"resource": "cpu", "quantity": "3", "percent": 50},),
    ),
    Case(
        "a percentage of decimal amounts is rounded down to thousandths",
        {"cpu": "330m", "memory": "8Gi", "pods": "110"},
        allocatable=NODE | {"cpu": "1001m"},
        limits=({"resource": "cpu", "percent": 33},),
    ),
    Case(
        "a percentage of binary amounts is rounded down to whole units",
        {"cpu": "4", "memory": "346030", "pods": "110"},
        allocatable=NODE | {"memory": "1Mi"},
        limits=({"resource": "memory", "percent": 33},),
    ),
    Case(
        "a percentage of memory in decimal notation keeps thousandths",
        {"cpu": "4", "memory": "500000500m", "pods": "110"},
        allocatable=NODE | {"memory": "1000001"},
        limits=({"resource": "memory", "percent": 50},),
    ),
    Case(
        "limits of one resource apply one after the other",
        {"cpu": "1", "memory": "8Gi", "pods": "110"},
        limits=({"resource": "cpu", "percent": 50}, {"resource": "cpu", "percent": 50}),
    ),
    Case(
        "a percentage after a quantity is of that quantity",
        {"cpu": "1500m", "memory": "8Gi", "pods": "110"},
        limits=({"resource": "cpu", "quantity": "3"}, {"resource": "cpu", "percent": 50}),
    ),
    Case(
        "a quantity of zero lends none",
        {"cpu": "0", "memory": "8Gi", "pods": "110"},
        limits=({"resource": "cpu", "quantity": "0"},),
    ),
    Case(
        "a percentage of zero or less lends none",
        {"cpu": "0", "memory": "0", "pods": "110"},
        limits=({"resource": "cpu", "percent": 0}, {"resource": "memory", "percent": -5}),
        plain=False,  # API servers refuse it today; stored objects of earlier versions may have it
    ),
    Case(
        "a limit without amounts lends none",
        {"cpu": "0", "memory": "8Gi", "pods": "110"},
        limits=({"resource": "cpu"},),
    ),
    Case(
        "a limit finer than a thousandth is rounded down",
        {"cpu": "1m", "memory": "8Gi", "pods": "110"},
        limits=({"resource": "cpu", "quantity": "1999u"},),
    ),
    Case(
        "extended resources are lent in whole units",
        {"cpu": "4", "memory": "8Gi", "pods": "109", "nvidia.com/gpu": "1"},
        allocatable=NODE | {"nvidia.com/gpu": "4"},
        capacity=NODE | {"nvidia.com/gpu": "4"},
        others=(pod(gpu("1")),),
        limits=({"resource": "nvidia.com/gpu", "percent": 50},),
    ),
    Case(
        "pods are lent in whole units",
        {"cpu": "4", "memory": "8Gi", "pods": "54"},
        others=(pod(container()),),
        limits=({"resource": "pods", "percent": 50},),
    ),
    Case(
        "a pod whose init container is larger counts as that",
        {"cpu": "2", "memory": "7Gi", "pods": "109"},
        others=(pod(container(cpu="500m", memory="1Gi"), inits=(init(cpu="2", memory="1Mi"),)),),
    ),
    Case(
        "init containers run one at a time",
        {"cpu": "3", "memory": "8Gi", "pods": "109"},
        others=(pod(container(cpu="100m"), inits=(init("a", cpu="1"), init("b", cpu="800m"))),),
    ),
    Case(
        "an init container runs beside the sidecars before it",
        {"cpu": "3150m", "memory": "8Gi", "pods": "109"},
        others=(pod(container(cpu="500m"), inits=(sidecar(cpu="250m"), init(cpu="600m"))),),
    ),
    Case(
        "an init container does not run beside the sidecars after it",
        {"cpu": "3250m", "memory": "8Gi", "pods": "109"},
        others=(pod(container(cpu="500m"), inits=(init(cpu="700m"), sidecar(cpu="250m"))),),
    ),
    Case(
        "requests of a whole pod replace those of its containers",
        {"cpu": "2", "memory": "7Gi", "pods": "109"},
        others=(
            pod(
                container("a", cpu="500m", memory="1Gi"),
                container("b"),
                resources={"requests": {"cpu": "2"}},
            ),
        ),
    ),
    Case(
        "overhead comes on top",
        {"cpu": "2750m", "memory": "8320Mi", "pods": "109"},
        allocatable=NODE | {"memory": "9Gi"},
        others=(
            pod(container(cpu="1", memory="768Mi"), overhead={"cpu": "250m", "memory": "128Mi"}),
        ),
        plain=False,  # overhead is filled in from a RuntimeClass
    ),
    Case(
        "a container that is being shrunk still holds what it was given",
        {"cpu": "2", "memory": "8Gi", "pods": "109"},
        others=(
            pod(
                container(cpu="500m"),
                status={
                    "phase": "Running",
                    "containerStatuses": [
                        {
                            "name": "app",
                            "resources": {"requests": {"cpu": "2"}},
                            "allocatedResources": {"cpu": "1"},
                        }
                    ],
                },
            ),
        ),
        plain=False,  # only a kubelet sets this status
    ),
    Case(
        "pods that ended take nothing",
        {"cpu": "4", "memory": "8Gi", "pods": "110"},
        others=(
            pod(container(cpu="1"), status={"phase": "Succeeded"}),
            pod(container(cpu="2"), status={"phase": "Failed"}),
        ),
    ),
    Case(
        "nothing is left over of a node that others use up",
        {"cpu": "0", "memory": "8Gi", "pods": "108"},
        others=(pod(container(cpu="3")), pod(container(cpu="2"))),
    ),
    Case(
        "our own pods do not make the offer smaller",
        {"cpu": "4", "memory": "8Gi", "pods": "110"},
        ours=(pod(container(cpu="1", memory="1Gi")),),
    ),
    Case(
        "a limit below the requests of our pods does not lower the offer below them",
        {"cpu": "2", "memory": "8Gi", "pods": "110"},
        ours=(pod(container(cpu="1500m")), pod(container(cpu="500m"))),
        limits=({"resource": "cpu", "quantity": "1"},),
    ),
    Case(
        "new pods of others do not lower the offer below the requests of our pods",
        {"cpu": "2", "memory": "8Gi", "pods": "109"},
        others=(pod(container(cpu="3")),),
        ours=(pod(container(cpu="2")),),
    ),
    Case(
        "a node is never offered for more than it has",
        {"cpu": "4", "memory": "8Gi", "pods": "110"},
        ours=(pod(container(cpu="3")), pod(container(cpu="2"))),
        limits=({"resource": "cpu", "quantity": "1"},),
    ),
    Case(
        "fewer pods than ours are not offered",
        {"cpu": "4", "memory": "8Gi", "pods": "3"},
        ours=(pod(container()), pod(container()), pod(container())),
        limits=({"resource": "pods", "quantity": "2"},),
    ),
    Case(
        "a resource that only our pods know is not invented",
        {"cpu": "4", "memory": "8Gi", "pods": "110"},
        ours=(pod(container(), gpu("1") | {"name": "gpu"}),),
    ),
    Case(
        "a node that does not say what is allocatable is taken at its capacity",
        {"cpu": "1", "memory": "8Gi", "pods": "110"},
        allocatable={},
        limits=({"resource": "cpu", "percent": 25},),
        plain=False,  # a server sets the allocatable
    ),
    Case(
        "resources of every kind are lent, limited or not",
        {
            "cpu": "2",
            "memory": "4Gi",
            "pods": "109",
            "ephemeral-storage": "45Gi",
            "hugepages-2Mi": "1Gi",
        },
        allocatable=NODE | {"ephemeral-storage": "100Gi", "hugepages-2Mi": "1Gi"},
        capacity=NODE | {"ephemeral-storage": "100Gi", "hugepages-2Mi": "1Gi"},
        others=(pod(container(ephemeral_storage="10Gi")),),
        limits=(
            {"resource": "cpu", "percent": 50},
            {"resource": "memory", "percent": 50},
            {"resource": "ephemeral-storage", "percent": 50},
        ),
    ),
)
