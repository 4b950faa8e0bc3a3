"""Ports of the proxier: one for each virtual node, and always the same."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kubeocean.api.group import DEFAULT
from kubeocean.api.naming import proxier_port
from kubeocean.runtime.kinds import Node
from kubeocean.runtime.objects import Meta
from kubeocean.syncer.nodes.ports import ProxierPorts


def vnode(name: str, port: str) -> Node:
    return Node(metadata=Meta(name=name, labels={DEFAULT.proxier_port: port}))


@given(st.lists(st.text("abc", min_size=1, max_size=4), unique=True, max_size=60))
def test_no_two_nodes_have_the_same_port(names: list[str]) -> None:
    ports = ProxierPorts(DEFAULT)
    given_out = {name: ports.of(name) for name in names}
    assert len(set(given_out.values())) == len(names)
    assert {name: ports.of(name) for name in names} == given_out


def test_a_node_keeps_the_port_of_its_label() -> None:
    ports = ProxierPorts(DEFAULT)
    ports.follow(None, vnode("x", "23456"))
    assert ports.of("x") == 23456
    ports.follow(vnode("x", "23456"), vnode("x", "no number"))
    assert ports.of("x") == 23456
    ports.follow(vnode("x", "23456"), None)
    assert ports.of("x") == proxier_port("x")


def test_a_port_that_is_taken_is_passed_over() -> None:
    ports = ProxierPorts(DEFAULT)
    ports.follow(None, vnode("other", str(proxier_port("x"))))
    assert ports.of("x") != proxier_port("x")


def test_a_port_outside_the_range_is_ignored() -> None:
    for port in ("0", "14999", "65536", "99999999", "１６０００"):
        ports = ProxierPorts(DEFAULT)
        ports.follow(None, vnode("x", port))
        assert ports.of("x") == proxier_port("x")
    ports.follow(vnode("x", port), vnode("x", "65535"))
    assert ports.of("x") == 65535
