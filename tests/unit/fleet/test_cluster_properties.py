"""Properties that Kubeocean adds: devices, machine types, zones, version."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kubeocean.fleet.properties.cluster import (
    ClusterFacts,
    NodeFacts,
    RequestTotals,
    extension_properties,
    requests_of,
)
from kubeocean.runtime.kinds import Container, ContainerResources, Node, NodeStatus, Pod
from kubeocean.runtime.objects import Meta
from kubeocean.runtime.quantity import ZERO, Quantity


def gpu_node(count: str | int | float, **labels: str) -> NodeFacts:
    status = NodeStatus(
        capacity={"nvidia.com/gpu": count, "cpu": "4"},
        allocatable={"nvidia.com/gpu": count},
    )
    return NodeFacts.from_node(Node(metadata=Meta("n", labels=labels), status=status))


def pod(requests: dict[str, str | int | float], *, node: str = "n", phase: str = "Running") -> Pod:
    spec = Pod().spec
    container = Container(resources=ContainerResources(requests=requests))
    spec = type(spec)(node_name=node, containers=(container, container))
    return Pod(spec=spec, status=type(Pod().status)(phase=phase))


def test_devices_are_quantities() -> None:
    facts = ClusterFacts([gpu_node("4"), gpu_node(4)], {"nvidia.com/gpu": Quantity.parse("3")})
    assert extension_properties(facts) == {
        "kubeocean.io/resources/nvidia.com/gpu/capacity": "8",
        "kubeocean.io/resources/nvidia.com/gpu/allocatable": "8",
        "kubeocean.io/resources/nvidia.com/gpu/available": "5",
    }


def test_devices_are_never_less_than_none() -> None:
    facts = ClusterFacts([gpu_node("1")], {"nvidia.com/gpu": Quantity.parse("3")})
    properties = extension_properties(facts)
    assert properties["kubeocean.io/resources/nvidia.com/gpu/available"] == "0"


def test_unreadable_amounts_count_as_none() -> None:
    facts = ClusterFacts([gpu_node("many"), gpu_node("2")])
    properties = extension_properties(facts)
    assert properties["kubeocean.io/resources/nvidia.com/gpu/capacity"] == "2"
    assert "kubeocean.io/resources/nvidia.com/gpu/available" not in properties


def test_resources_of_kubernetes_itself_are_no_devices() -> None:
    facts = NodeFacts.from_node(
        Node(status=NodeStatus(capacity={"cpu": "1", "hugepages-2Mi": "0", "x.kubernetes.io/y": 1}))
    )
    assert extension_properties(ClusterFacts([facts])) == {}


def test_nodes_are_counted_by_machine_type_zone_and_region() -> None:
    zone = "topology.kubernetes.io/zone"
    nodes = [
        gpu_node(0, **{"node.kubernetes.io/instance-type": "large", zone: "z1"}),
        gpu_node(0, **{"beta.kubernetes.io/instance-type": "large", zone: "z2"}),
        gpu_node(0, **{zone: "z2", "topology.kubernetes.io/region": "north"}),
    ]
    properties = extension_properties(ClusterFacts(nodes, version="v1.35.0"))
    counts = {name: value for name, value in properties.items() if name.endswith("/nodes")}
    assert counts == {
        "kubeocean.io/skus/large/nodes": "2",
        "kubeocean.io/zones/z1/nodes": "1",
        "kubeocean.io/zones/z2/nodes": "2",
        "kubeocean.io/regions/north/nodes": "1",
    }
    assert properties["k8s.io/k8s-version"] == "v1.35.0"


def test_a_cluster_of_many_names_reports_some() -> None:
    zone = "topology.kubernetes.io/zone"
    nodes = [gpu_node(0, **{zone: f"z{number:03}"}) for number in range(200)]
    properties = extension_properties(ClusterFacts(nodes))
    zones = [name for name in properties if "/zones/" in name]
    assert len(zones) == 50
    assert zones[0] == "kubeocean.io/zones/z000/nodes"


def test_pods_request_what_their_main_containers_request() -> None:
    assert requests_of(pod({"cpu": "1"})) == {"cpu": Quantity.parse("2")}
    assert requests_of(pod({"cpu": "1"}, node="")) == {}
    assert requests_of(pod({"cpu": "1"}, phase="Failed")) == {}
    assert requests_of(pod({"cpu": "a lot"})) == {"cpu": ZERO}


_PODS = st.builds(
    pod,
    st.dictionaries(st.sampled_from(["cpu", "memory", "nvidia.com/gpu"]), st.integers(0, 100)),
    node=st.sampled_from(["", "n"]),
    phase=st.sampled_from(["Running", "Pending", "Succeeded"]),
)


@given(st.lists(st.tuples(_PODS, _PODS)))
def test_totals_equal_the_sum_after_any_changes(changes: list[tuple[Pod, Pod]]) -> None:
    totals = RequestTotals()
    for first, second in changes:
        totals.change(None, first)
        totals.change(first, second)
    expected: dict[str, Quantity] = {}
    for _, second in changes:
        for name, amount in requests_of(second).items():
            expected[name] = expected.get(name, ZERO) + amount
    assert {name: amount for name, amount in totals.amounts.items() if amount != ZERO} == {
        name: amount for name, amount in expected.items() if amount != ZERO
    }
