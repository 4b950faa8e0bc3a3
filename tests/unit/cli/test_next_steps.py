"""Tests of the guide that `kubeocean up` prints, and of its options."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from kubeocean.api.policies import problems
from kubeocean.cli._next_steps import Guide
from kubeocean.leasing.windows import Calendar, next_edge
from kubeocean.local import demo_objects
from kubeocean.local.lifecycle import Wish
from kubeocean.local.ocean import Shape
from kubeocean.local.state import ClusterState

CLUSTERS = (
    ClusterState("computing", "https://127.0.0.1:1", 6),
    ClusterState("worker-1", "https://127.0.0.1:2", 3),
    ClusterState("worker-2", "https://127.0.0.1:3", 3),
)


def guide(shape: Shape) -> Guide:
    return Guide(shape, CLUSTERS, Path("/state/a b/kubeconfig"), "/assets/kubectl")


def test_the_guide_lists_commands_from_nodes_to_doctor() -> None:
    commands = guide(Shape(product=True)).commands()
    assert commands[0] == "export KUBECONFIG='/state/a b/kubeconfig'"
    assert [line.partition("kubectl ")[2] for line in commands[1:5]] == [
        "get nodes",
        "get pods -o wide",
        "--context worker-1 get pods -n kubeocean-worker",
        "-n kubeocean-system logs deploy/kubeocean-manager --tail 3",
    ]
    assert commands[-3].endswith("status")
    assert commands[-2].endswith("explain node vnode-worker-1-sim-0")
    assert commands[-1].endswith("doctor")


def test_the_guide_reads_logs_of_real_nodes_only() -> None:
    real = " ".join(guide(Shape(product=True, real_nodes=True)).commands())
    assert "logs deploy/sample" in real
    assert "vnode-worker-1-real-0" in real
    assert "deploy/sample" not in " ".join(guide(Shape(product=True)).commands())


def test_the_guide_has_no_sample_if_no_node_is_lent() -> None:
    for shape in (Shape(product=True, nodes=0), Shape(product=True, workers=0)):
        commands = " ".join(guide(shape).commands())
        assert "pods" not in commands
        assert "explain" not in commands


def test_the_guide_of_a_bare_ocean_lists_nodes_only() -> None:
    shown = guide(Shape())
    assert len(shown.commands()) == 2
    assert shown.commands()[1].endswith("kubectl --context worker-2 get nodes")
    assert shown.table()[1] == "computing   https://127.0.0.1:1   6 (virtual)"


def test_a_bare_ocean_differs_from_one_with_kubeocean() -> None:
    assert Wish().shape().product is True
    assert Wish(bare=True).shape().product is False
    assert Wish(bare=True).differs(Shape(product=True))
    assert not Wish().differs(Shape(product=False))
    assert str(Wish(bare=True, nodes=2)) == "--nodes 2 --bare"


def test_the_workers_are_a_fleet_unless_it_is_left_out() -> None:
    assert Wish().shape().fleet is True
    assert Wish(fleet=False).shape().fleet is False
    assert Wish(bare=True).shape().fleet is False
    assert Wish(workers=0).shape().fleet is False
    assert Wish(fleet=True).differs(Shape(product=True))
    assert not Wish().differs(Shape(product=True))
    assert str(Wish(fleet=False)) == "--no-fleet"
    assert str(Wish(fleet=True)) == "--fleet"
    commands = guide(Shape(product=True, fleet=True)).commands()
    assert commands[-2].endswith("fleet clusters")
    alone = guide(Shape(product=True, fleet=True, workers=0)).commands()
    assert not any(each.endswith("fleet clusters") for each in alone)


@pytest.mark.parametrize(
    ("now", "window"),
    [
        ("2026-05-01T10:00:05+00:00", ("10:03", "10:00")),
        ("2026-05-01T10:00:30+00:00", ("10:04", "10:01")),
        ("2026-05-01T23:56:50+00:00", ("00:00", "23:57")),
        ("2026-05-01T23:58:50+00:00", ("00:02", "23:59")),
        ("2026-05-01T12:00:05+02:00", ("10:03", "10:00")),
    ],
)
def test_a_shown_reclaim_lasts_two_minutes(now: str, window: tuple[str, str]) -> None:
    closes, opens = demo_objects.next_break(datetime.fromisoformat(now))
    assert 0 < (closes - datetime.fromisoformat(now)).total_seconds() <= 120
    assert closes.tzinfo is UTC
    spec = demo_objects.with_break("w", closes, opens)
    assert [(each.start, each.end) for each in spec.time_windows or ()] == [window]
    assert list(problems(spec)) == []
    calendar = Calendar.of(spec.time_windows, UTC)
    assert next_edge(calendar, datetime.fromisoformat(now)) == closes
    assert next_edge(calendar, closes) == opens
    assert list(problems(demo_objects.lease("w"))) == []


def test_the_guide_of_an_ocean_without_workers_names_no_node() -> None:
    assert str(Shape(workers=0, nodes=3)) == "no worker"
    assert str(Shape(workers=1, nodes=1)) == "1 worker with 1 simulated node"
