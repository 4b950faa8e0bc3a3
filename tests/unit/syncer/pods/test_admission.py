"""Host ports: which ones a pod requests, and which pods cannot share a node."""

from __future__ import annotations

import pytest

from kubeocean.runtime.objects import Json, decode_object, encode
from kubeocean.syncer.nodes.host_port_forge import HostPort
from kubeocean.syncer.pods.admission import TakenPort, conflict, host_ports
from kubeocean.syncer.pods.views import VirtualPod

ANY = "0.0.0.0"


@pytest.mark.parametrize(
    ("other", "conflicts"),
    [
        (HostPort(ANY, "TCP", 80), True),
        (HostPort("10.0.0.1", "TCP", 80), True),
        (HostPort("10.0.0.2", "TCP", 80), False),
        (HostPort("10.0.0.1", "UDP", 80), False),
        (HostPort("10.0.0.1", "TCP", 81), False),
    ],
)
def test_a_port_conflicts_by_protocol_number_and_address(other: HostPort, conflicts: bool) -> None:
    port = HostPort("10.0.0.1", "TCP", 80)
    assert conflict(port, other) is conflict(other, port) is conflicts


def test_only_host_ports_of_a_pod_count() -> None:
    def vpod(*ports: Json) -> VirtualPod:
        body = {"metadata": {"name": "p"}, "spec": {"containers": [{"ports": list(ports)}]}}
        return decode_object(VirtualPod, encode(body), keep_raw=True)

    assert host_ports(vpod({"containerPort": 80})) == ()
    assert host_ports(vpod({"containerPort": 80, "hostPort": 8080})) == (
        HostPort(ANY, "TCP", 8080),
    )
    taken = TakenPort(HostPort(ANY, "TCP", 8080))
    assert taken.reason == "NodePorts"
    assert taken.message.endswith("8080/TCP is taken")
