"""Reservations of host ports: exactly the ports that pods of others hold, each once."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubeocean.api.group import DEFAULT, TAPESTRY, Domain
from kubeocean.api.naming import host_port_pod
from kubeocean.api.ownership import Ids, ownership_labels
from kubeocean.runtime.objects import Json
from kubeocean.syncer.nodes.host_port_forge import (
    HostPort,
    PortPod,
    Reservation,
    ReservationPod,
    changes,
    counts,
    fits,
    forge,
    forge_namespace,
    is_ours,
    lean,
    ports_of,
    taken_ports,
)

IDS = Ids("b1", "c1", "computing")
HTTP = HostPort("0.0.0.0", "TCP", 80)
DNS = HostPort("10.0.0.1", "UDP", 53)


def pod_of(
    *ports: Json,
    init: tuple[Json, ...] = (),
    phase: str = "Running",
    labels: dict[str, str] | None = None,
) -> PortPod:
    spec = {
        "nodeName": "n1",
        "containers": [{"name": "a", "ports": list(ports)}, {"name": "b"}],
        "initContainers": [{"name": "i", "ports": list(init)}],
    }
    metadata = {"name": "p", "namespace": "ns", "uid": "u", "labels": labels}
    document = {"metadata": metadata, "spec": spec, "status": {"phase": phase}}
    return msgspec.convert(document, PortPod)


def reservation_of(
    *ports: HostPort, uid: str = "vnode-uid", domain: Domain = DEFAULT
) -> Reservation:
    return Reservation(
        ports=ports,
        vnode="vnode-c1-n1",
        vnode_uid=uid,
        binding="b1",
        cluster_id="c1",
        domain=domain,
    )


def reserved(reservation: Reservation, **status: object) -> ReservationPod:
    scheduled = {"type": "PodScheduled", "status": "True"}
    status = {"phase": "Running", "conditions": [scheduled]} | status
    return msgspec.convert(forge(reservation) | {"status": status}, ReservationPod)


def changed(pod: ReservationPod, **metadata: object) -> ReservationPod:
    document = msgspec.to_builtins(pod)
    document["metadata"] |= metadata
    return msgspec.convert(document, ReservationPod)


# Held ports


def test_ports_of_all_containers_are_found_with_their_defaults() -> None:
    http, dns = {"hostPort": 80}, {"hostPort": 53, "protocol": "UDP", "hostIP": "10.0.0.1"}
    inner = {"containerPort": 8080}
    assert ports_of(pod_of(http, inner, init=(dns,))) == {HTTP, DNS}


def test_a_pod_without_containers_or_ports_holds_nothing() -> None:
    assert ports_of(PortPod()) == frozenset()
    assert ports_of(pod_of({"containerPort": 8080})) == frozenset()


def test_a_port_that_two_pods_hold_is_reserved_once() -> None:
    both = [pod_of({"hostPort": 80}), pod_of({"hostPort": 80, "hostIP": "0.0.0.0"})]
    assert taken_ports(both, IDS, DEFAULT) == (HTTP,)


@pytest.mark.parametrize(
    ("pod", "holds"),
    [
        (pod_of(phase="Running"), True),
        (pod_of(phase="Pending"), True),
        (pod_of(phase=""), True),
        (pod_of(phase="Unknown"), True),
        (pod_of(phase="Succeeded"), False),
        (pod_of(phase="Failed"), False),
        (pod_of(labels={"kubeocean.io/managed-by": "kubeocean"}), False),
        (pod_of(labels={"kubeocean.io/managed-by": "helm"}), True),
        (pod_of(labels=ownership_labels(IDS, DEFAULT)), False),
        (pod_of(labels=ownership_labels(Ids("b2", "c1", "computing"), DEFAULT)), True),
        (pod_of(labels=ownership_labels(Ids("b1", "c1", "another"), DEFAULT)), True),
        (pod_of(labels={"tapestry.io/managed-by": "tapestry"}), True),
    ],
    ids=lambda value: str(value) if isinstance(value, bool) else "",
)
def test_unfinished_pods_of_others_count(pod: PortPod, holds: bool) -> None:
    assert counts(pod, IDS, DEFAULT) is holds


ports = st.builds(
    HostPort,
    st.sampled_from(["0.0.0.0", "10.0.0.1", "127.0.0.1", "fd00::1"]),
    st.sampled_from(["TCP", "UDP", "SCTP"]),
    st.integers(1, 65_535) | st.integers(1, 5),
)


def _written(port: HostPort, explicit: bool) -> Json:
    """Return a port as an API server may store it: defaults may be omitted."""
    written: Json = {"hostPort": port.number}
    if explicit or port.address != "0.0.0.0":
        written["hostIP"] = port.address
    if explicit or port.protocol != "TCP":
        written["protocol"] = port.protocol
    return written


drawn = st.tuples(
    st.lists(st.tuples(ports, st.booleans()), max_size=5),
    st.lists(st.tuples(ports, st.booleans()), max_size=2),
    st.sampled_from(["Pending", "Running", "Succeeded", "Failed"]),
    st.booleans(),
)


@given(st.lists(drawn, max_size=6))
def test_exactly_the_ports_of_counted_pods_are_held_in_order(
    pods: list[tuple[list[tuple[HostPort, bool]], list[tuple[HostPort, bool]], str, bool]],
) -> None:
    made, expected = [], set()
    for main, init, phase, ours in pods:
        labels = {"kubeocean.io/managed-by": "kubeocean"} if ours else {"app": "x"}
        documents = [[_written(*port) for port in listed] for listed in (main, init)]
        made.append(pod_of(*documents[0], init=tuple(documents[1]), phase=phase, labels=labels))
        if not ours and phase in ("Pending", "Running"):
            expected |= {port for port, _ in (*main, *init)}
    ports = taken_ports(made, IDS, DEFAULT)
    assert set(ports) == expected
    assert list(ports) == sorted(expected)
    assert ports == taken_ports(reversed([lean(pod, IDS, DEFAULT) for pod in made]), IDS, DEFAULT)


@given(st.sets(ports, min_size=1, max_size=8), st.sets(ports, min_size=1, max_size=8))
def test_a_reservation_holds_its_ports_and_is_named_by_them(
    one: set[HostPort], other: set[HostPort]
) -> None:
    first, second = reservation_of(*sorted(one)), reservation_of(*sorted(other))
    pod = reserved(first)
    assert ports_of(pod) == one
    assert fits(pod, first)
    assert fits(pod, second) == (one == other)
    assert (first.name == second.name) == (one == other)
    container = forge(first)["spec"]["containers"][0]
    names = [port["name"] for port in container["ports"]]
    assert len(set(names)) == len(one)
    assert all(len(name) <= 15 for name in names)


def test_a_cached_pod_keeps_only_ports_phase_and_ownership() -> None:
    labels = {"app": "x", "kubeocean.io/managed-by": "kubeocean"}
    kept = lean(pod_of({"hostPort": 80}, labels=labels), IDS, DEFAULT)
    assert kept.labels == {"kubeocean.io/managed-by": "kubeocean"}
    assert (kept.key, kept.uid) == (("ns", "p"), "u")
    assert lean(pod_of(labels={"app": "x"}), IDS, DEFAULT).metadata.labels is None


# The reservation


def test_a_reservation_is_the_pod_of_the_contract() -> None:
    made = forge(reservation_of(HTTP, DNS))
    metadata, spec = made["metadata"], made["spec"]
    assert metadata["namespace"] == "kubeocean-fake"
    assert metadata["name"] == host_port_pod("vnode-c1-n1", [HTTP, DNS])
    assert metadata["name"].startswith("fake-pod-for-hostport-")
    assert metadata["labels"] == {
        "kubeocean.io/managed-by": "kubeocean",
        "kubeocean.io/hostport-fake-pod": "true",
        "kubeocean.io/cluster-binding": "b1",
        "kubeocean.io/physical-cluster-id": "c1",
    }
    (owner,) = metadata["ownerReferences"]
    assert (owner["kind"], owner["name"], owner["uid"]) == ("Node", "vnode-c1-n1", "vnode-uid")
    assert spec["nodeName"] == "vnode-c1-n1"
    assert spec["tolerations"] == [{"operator": "Exists"}]
    assert spec["terminationGracePeriodSeconds"] == 0
    assert spec["automountServiceAccountToken"] is False
    assert spec["restartPolicy"] == "Never"
    assert spec["priorityClassName"] == "system-node-critical"
    (container,) = spec["containers"]
    assert container["name"] == "fake-container"
    assert container["image"] == "busybox:1.28"
    assert container["command"] == ["sleep", "100000000"]
    assert container["ports"] == [
        {
            "name": "port-0",
            "hostIP": "0.0.0.0",
            "protocol": "TCP",
            "hostPort": 80,
            "containerPort": 80,
        },
        {
            "name": "port-1",
            "hostIP": "10.0.0.1",
            "protocol": "UDP",
            "hostPort": 53,
            "containerPort": 53,
        },
    ]


def test_the_namespace_lets_host_ports_in() -> None:
    made = forge_namespace(TAPESTRY)
    assert made["metadata"]["name"] == "tapestry-fake"
    assert made["metadata"]["labels"] == {
        "tapestry.io/managed-by": "tapestry",
        "pod-security.kubernetes.io/enforce": "privileged",
    }


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
def test_a_finished_pod_reserves_nothing(phase: str) -> None:
    reservation = reservation_of(HTTP)
    assert not fits(reserved(reservation, phase=phase), reservation)


def test_a_terminating_pod_reserves_nothing() -> None:
    reservation = reservation_of(HTTP)
    leaving = changed(reserved(reservation), deletionTimestamp="2026-01-01T00:00:00Z")
    assert not fits(leaving, reservation)


def test_a_pod_on_another_node_reserves_nothing_here() -> None:
    reservation = reservation_of(HTTP)
    pod = reserved(reservation)
    elsewhere = msgspec.structs.replace(
        pod, spec=msgspec.structs.replace(pod.spec, node_name="vnode-c1-n2")
    )
    assert not fits(elsewhere, reservation)


def test_a_pod_owned_by_an_earlier_node_of_that_name_does_not_fit() -> None:
    assert not fits(reserved(reservation_of(HTTP, uid="old")), reservation_of(HTTP, uid="new"))


def test_a_pod_without_owner_fits() -> None:
    reservation = reservation_of(HTTP)
    assert fits(changed(reserved(reservation), ownerReferences=None), reservation)


def test_a_reservation_without_difference_is_not_written() -> None:
    reservation = reservation_of(HTTP)
    assert changes(reserved(reservation), reservation, now="now") == {}


def test_a_new_reservation_gets_the_status_scheduled_and_running() -> None:
    reservation = reservation_of(HTTP)
    new = reserved(reservation, phase="Pending", conditions=None)
    condition = {"type": "PodScheduled", "status": "True", "lastTransitionTime": "now"}
    expected = {"status": {"phase": "Running", "conditions": [condition]}}
    assert changes(new, reservation, now="now") == expected


def test_a_pod_of_an_earlier_implementation_is_labelled_in_the_same_write() -> None:
    reservation = reservation_of(HTTP)
    labels = {"kubeocean.io/managed-by": "kubeocean", "kubeocean.io/hostport-fake-pod": "true"}
    old = changed(reserved(reservation, phase="Pending"), labels=labels)
    assert changes(old, reservation, now="now") == {
        "metadata": {
            "labels": {
                "kubeocean.io/cluster-binding": "b1",
                "kubeocean.io/physical-cluster-id": "c1",
            }
        },
        "status": {"phase": "Running"},
    }


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("kubeocean.io/managed-by", "x"),
        ("kubeocean.io/hostport-fake-pod", "false"),
        ("kubeocean.io/cluster-binding", "b2"),
        ("kubeocean.io/physical-cluster-id", "c2"),
    ],
)
def test_one_wrong_label_makes_a_reservation_foreign(key: str, value: str) -> None:
    pod = reserved(reservation_of(HTTP))
    assert is_ours(pod, binding="b1", cluster_id="c1", domain=DEFAULT)
    foreign = changed(pod, labels={**pod.labels, key: value})
    assert not is_ours(foreign, binding="b1", cluster_id="c1", domain=DEFAULT)


def test_another_domain_has_its_own_namespace() -> None:
    pod = reserved(reservation_of(HTTP, domain=TAPESTRY))
    assert pod.namespace == "tapestry-fake"
    assert is_ours(pod, binding="b1", cluster_id="c1", domain=TAPESTRY)
