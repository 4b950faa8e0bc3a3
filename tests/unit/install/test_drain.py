"""Whom a drain evicts."""

from __future__ import annotations

import msgspec

from kubeocean.install.drain import Left, bare, to_evict
from kubeocean.runtime.kinds import Pod


def pod(name: str, *, phase: str = "Running", namespace: str = "team", kind: str = "") -> Pod:
    owner = [{"kind": kind, "name": "o", "uid": "u", "controller": True}] if kind else []
    meta = {"name": name, "namespace": namespace, "ownerReferences": owner}
    return msgspec.convert({"metadata": meta, "status": {"phase": phase}}, Pod)


def test_pods_of_daemon_sets_placeholders_and_terminated_pods_are_not_evicted() -> None:
    pods = [
        pod("web", kind="ReplicaSet"),
        pod("bare"),
        pod("daemon", kind="DaemonSet"),
        pod("done", phase="Succeeded"),
        pod("reservation", namespace="kubeocean-fake"),
    ]
    assert [each.name for each in to_evict(pods)] == ["web", "bare"]
    assert [each.name for each in bare(to_evict(pods))] == ["bare"]


def test_pods_that_are_left_are_described_in_one_line() -> None:
    left = Left(("n",), ("team/a", "team/b"), ("team/a",))
    assert str(left) == "2 pods left on 1 node, 1 held by disruption budgets"
    assert not left.done
    assert Left(("n",)).done


def test_pods_that_come_after_the_cordon_are_described() -> None:
    left = Left(("n",), ("team/a", "team/b"), returned=("team/b",))
    assert str(left) == "2 pods left on 1 node, 1 new since the cordon"
