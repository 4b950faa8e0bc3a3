"""Pages of text and documents in JSON of `status`."""

from __future__ import annotations

import pytest

from kubeocean.inspect.format import plain
from kubeocean.inspect.pod_counts import PodCounter
from kubeocean.inspect.snapshot import NotRead, Snapshot, WorkerState
from kubeocean.inspect.status.build import installation_view
from kubeocean.inspect.status.model import InstallationView
from kubeocean.inspect.status.pages import document, status_page, top_document, top_page
from kubeocean.runtime.objects import Json
from support.objects import (
    NOW,
    a_binding,
    a_deployment,
    a_node,
    a_pod,
    a_policy,
    a_worker,
    by_name,
    condition,
)

LOST = condition("Connected", "False", "WorkerUnreachable", "The worker has not answered")
KINDLESS = condition("Connected", "False", "PolicyKindMissing", "It does not know the kind")
DELETED = {"deletionTimestamp": "2026-11-16T20:59:00Z"}
GPUS = {"cpu": "4", "memory": "16Gi", "pods": "110", "nvidia.com/gpu": "2", "hugepages-2Mi": "0"}
RECLAIM = {
    "startTime": "2026-11-16T20:58:00Z",
    "deadlineTime": "2026-11-16T21:03:00Z",
    "pending": 2,
    "pendingNodes": 1,
}
EVICTING = condition("Reclaiming", "True", "Evicting", "2 pods on 1 node left to be evicted")


@pytest.fixture
def view() -> InstallationView:
    """Return a view of two workers: one reclaims nodes, the other does not answer."""
    counter = PodCounter()
    counter.count([a_pod("vnode-berlin-n1"), a_pod("vnode-munich-m1", "Pending")])
    night = a_policy(timeWindows=[{"start": "20:00", "end": "05:59"}], timeZone="Europe/Berlin")
    day = a_policy(
        "day",
        timeWindows=[{"start": "08:00", "end": "17:59"}],
        timeZone="UTC",
        forceReclaim=True,
        status={"reclaim": RECLAIM, "conditions": [EVICTING]},
    )
    snapshot = Snapshot(
        at=NOW,
        bindings=(a_binding("munich", conditions=[LOST]), a_binding()),
        nodes=(
            a_node(amounts=GPUS),
            a_node("n2", policy="day", taints=["kubeocean.io/out-of-time-windows"]),
            a_node("m1", "munich", ready="Unknown"),
        ),
        usage=counter.usage(),
        deployments=by_name(
            a_deployment("kubeocean-syncer-berlin"),
            a_deployment("kubeocean-proxier-berlin"),
        ),
        workers={
            "berlin": a_worker("berlin", WorkerState.ANSWERED, "", night, day),
            "munich": a_worker("munich", WorkerState.SILENT, "no answer within 5 s"),
        },
    )
    return installation_view(snapshot)


# Lines of a page are as long as they are.
PAGE = """\
CLUSTER   PHASE   WORKER         SYNCER   PROXIER   NODES   LEASES
berlin    Ready   connected 1h   2/2      2/2       2/2     1 closed, 1 open
munich    Ready   no answer 1h   -        -         0/1     1 open

NODE              CLUSTER   READY     LEASE    CPU        MEMORY        PODS       POLICY
vnode-munich-m1   munich    unknown   lent     0.5 of 4   1Gi of 16Gi   1 of 110   night
vnode-berlin-n1   berlin    yes       lent     0.5 of 4   1Gi of 16Gi   1 of 110   night
vnode-berlin-n2   berlin    yes       closed   0 of 0     0 of 0        0 of 0     day

POLICY   CLUSTER   LEASE    NODES   NEXT EDGE                               RECLAIM
day      berlin    closed   1       opens Tue 08:00 UTC, in 11h             \
Evicting: 2 pods on 1 node, deadline in 3m
night    berlin    open     1       closes Tue 06:00 Europe/Berlin, in 8h   -
night    munich    open     1       not seen                                -

PODS     RUNNING   PENDING   SUCCEEDED   FAILED   UNKNOWN   TERMINATING   REFUSED
berlin   1         0         0           0        0         0             0
munich   0         1         0           0        0         0             0
total    1         1         0           0        0         0             0

problem: munich: The worker has not answered
problem: munich: 1 of 1 node not Ready: vnode-munich-m1
note: berlin: policy day reclaims: 2 pods on 1 node left to be evicted
not healthy: 2 problems; 2 clusters, 2 of 3 nodes Ready, 1 pod running
"""

TOP = """\
CLUSTER   NODES   CPU LENT   USED   FREE   MEMORY LENT   USED   FREE   PODS LENT   USED   FREE   \
NVIDIA.COM/GPU LENT   USED   FREE
berlin    2       4          0.5    3.5    16Gi          1Gi    15Gi   110         1      109    \
2                     0      2
munich    1       4          0.5    0      16Gi          1Gi    0      110         1      0      \
-                     -      -
total     3       8          1      3.5    32Gi          2Gi    15Gi   220         2      109    \
2                     0      2
"""


def test_the_page_of_status(view: InstallationView) -> None:
    assert plain(status_page(view)) == PAGE


def test_a_wide_page_has_more_columns_and_the_order_of_names(view: InstallationView) -> None:
    page = plain(status_page(view, wide=True))
    for column in ("SYNCER LEADER", "PHYSICAL NODE", "REASON", "WINDOWS", "ZONE", "LIMITS"):
        assert column in page
    assert "20:00-05:59   Europe/Berlin   all" in page
    assert page.index("vnode-berlin-n1") < page.index("vnode-munich-m1")


def test_a_page_shows_nodes_that_are_not_ready_first_and_counts_the_others() -> None:
    nodes = tuple(a_node(f"n{number:03}", ready=str(number != 70)) for number in range(100))
    view = installation_view(Snapshot(at=NOW, bindings=(a_binding(),), nodes=nodes, usage={}))
    page = plain(status_page(view))
    assert page.count("\nvnode-") == 20
    assert page.index("vnode-berlin-n070") < page.index("vnode-berlin-n000")
    assert "… 80 more; -o wide shows all\n" in page
    assert plain(status_page(view, wide=True)).count("\nvnode-") == 100


def test_an_installation_without_bindings_has_a_page() -> None:
    view = installation_view(Snapshot(at=NOW, nodes=(), usage={}))
    assert plain(status_page(view)) == (
        "No cluster is bound. Bind one with: kubeocean join NAME --kubeconfig FILE\n"
        "healthy: nothing is lent\n"
    )
    assert plain(top_page(view)) == "No cluster is bound.\n"


def test_a_binding_that_lends_nothing_has_a_page() -> None:
    workers = {"berlin": a_worker()}
    snapshot = Snapshot(at=NOW, bindings=(a_binding(),), nodes=(), usage={}, workers=workers)
    page = plain(status_page(installation_view(snapshot)))
    assert "No node is lent.\n" in page
    assert "No policy lends anything.\n" in page


@pytest.mark.parametrize(
    ("binding", "worker", "row"),
    [
        ({}, WorkerState.ANSWERED, "Ready   connected 1h"),
        ({}, WorkerState.SILENT, "Ready   no answer here"),
        ({"conditions": []}, WorkerState.ANSWERED, "Ready   answers"),
        ({"conditions": [], "phase": ""}, WorkerState.NOT_ASKED, "new     unknown"),
        ({"conditions": [LOST], "phase": "Failed"}, WorkerState.SILENT, "Failed   no answer 1h"),
        ({"conditions": [KINDLESS]}, WorkerState.REFUSED, "Ready   not usable 1h"),
        ({"metadata": DELETED}, WorkerState.ANSWERED, "Deleting   connected 1h"),
    ],
)
def test_a_cluster_is_shown_in_a_row(binding: Json, worker: WorkerState, row: str) -> None:
    snapshot = Snapshot(
        at=NOW,
        bindings=(a_binding(**binding),),
        usage={},
        workers={"berlin": a_worker("berlin", worker, "why")},
    )
    page = plain(status_page(installation_view(snapshot)))
    leases = "none" if worker is WorkerState.ANSWERED else "-"
    assert page.splitlines()[1] == f"berlin    {row}   -        -         0/0     {leases}"


def test_a_row_shows_what_a_reclaim_waits_for() -> None:
    grace = RECLAIM | {"evictionTime": "2026-11-16T21:01:00Z"}
    over = RECLAIM | {"deadlineTime": "2026-11-16T20:59:00Z"}
    for reclaim, text in (
        (grace, "Evicting: 2 pods on 1 node, evicts in 1m\n"),
        (over, "Evicting: 2 pods on 1 node\n"),
    ):
        policy = a_policy(status={"reclaim": reclaim, "conditions": [EVICTING]})
        worker = a_worker("berlin", WorkerState.ANSWERED, "", policy)
        snapshot = Snapshot(at=NOW, bindings=(a_binding(),), usage={}, workers={"berlin": worker})
        assert text in plain(status_page(installation_view(snapshot)))


def test_the_page_of_top(view: InstallationView) -> None:
    assert plain(top_page(view)) == TOP


def test_top_has_a_row_for_each_node_and_more_resources_if_asked(view: InstallationView) -> None:
    page = plain(top_page(view, nodes=True, wide=True))
    head, *rows = page.splitlines()
    assert "HUGEPAGES-2MI LENT" in head
    assert [row.split()[0] for row in rows] == [
        "vnode-berlin-n1",
        "vnode-berlin-n2",
        "vnode-munich-m1",
        "total",
    ]


# Documents


def keys(value: object, path: str = "") -> set[str]:
    """Return all paths of a document, with lists as if they had one element."""
    if isinstance(value, dict):
        return {
            key_path
            for key, each in value.items()
            for key_path in (f"{path}{key}", *keys(each, f"{path}{key}."))
        }
    if isinstance(value, list):
        return {key_path for each in value for key_path in keys(each, path)}
    return set()


KEYS = {
    "": "at manager clusters pods resources health notRead",
    "clusters.": "name clusterID phase message deleting waitsFor troubles connection worker "
    "syncer proxier nodes leases pods resources",
    "clusters.connection.": "state since reason message",
    "clusters.worker.": "state message",
    "clusters.syncer.": "state wanted serving leader message",
    "clusters.nodes.": "name physical ready since reason state policy offered resources pods "
    "podNames",
    "clusters.resources.": "lent used free",
    "clusters.pods.": "pending running succeeded failed unknown terminating waiting refused late "
    "unreplicated",
    "clusters.leases.": "policy state seen zone windows limits nextEdge overdue nodes "
    "forceReclaim reclaim message",
    "clusters.leases.nextEdge.": "time local zone opens",
    "clusters.leases.reclaim.": "reason message since evictsFrom deadline nodes pods evicted "
    "blocked",
    "health.": "healthy problems notes",
    "health.problems.": "cluster message bad",
}


@pytest.mark.parametrize("path", KEYS)
def test_a_document_has_these_keys(view: InstallationView, path: str) -> None:
    present = {
        key_path.removeprefix(path)
        for key_path in keys(document(view))
        if key_path.startswith(path) and "." not in key_path.removeprefix(path)
    }
    assert present == set(KEYS[path].split())


def test_a_document_has_exact_values(view: InstallationView) -> None:
    made = document(view)
    cluster: Json = made["clusters"][0]
    assert cluster["leases"][1]["nextEdge"] == {
        "time": "2026-11-17T05:00:00Z",
        "local": "2026-11-17T06:00:00+01:00",
        "zone": "Europe/Berlin",
        "opens": False,
    }
    assert cluster["nodes"][0]["resources"]["free"]["cpu"] == "3500m"
    assert cluster["connection"]["since"] == "2026-11-16T20:00:00Z"
    assert made["health"]["healthy"] is False
    assert made["health"]["problems"][0] == {
        "cluster": "munich",
        "message": "The worker has not answered",
        "bad": True,
    }


def test_a_document_has_the_same_keys_for_every_installation(view: InstallationView) -> None:
    made = document(view)
    assert [set(each) for each in made["clusters"]] == [set(made["clusters"][0])] * 2


def test_the_document_of_top(view: InstallationView) -> None:
    made = top_document(view, nodes=True)
    assert made["total"]["used"]["cpu"] == "1"
    assert [each["name"] for each in made["clusters"][0]["perNode"]] == [
        "vnode-berlin-n1",
        "vnode-berlin-n2",
    ]
    assert set(made["clusters"][0]) == {"name", "nodes", "lent", "used", "free", "perNode"}
    assert "perNode" not in top_document(view, nodes=False)["clusters"][0]


def test_pages_say_which_parts_could_not_be_read() -> None:
    nodes = NotRead("nodes", "nodes is forbidden", forbidden=True)
    pods = NotRead("pods", "could not list pods: 503")
    snapshot = Snapshot(
        at=NOW, bindings=(a_binding(),), nodes=nodes, usage=pods, unread=(nodes, pods)
    )
    view = installation_view(snapshot)
    page = plain(status_page(view)).splitlines()
    assert "Nodes are not shown: not allowed to list them" in page
    assert "Pods are not shown: could not list pods: 503" in page
    assert "No policy was read." in page
    assert page[1].split() == ["berlin", "Ready", "connected", "1h", "-", "-", "-", "-"]
    assert page[-1].startswith("health unknown; 1 cluster; nodes or pods could not be read: ")
    assert (document(view)["health"]["healthy"], document(view)["notRead"]) == (
        None,
        ["nodes: nodes is forbidden", "pods: could not list pods: 503"],
    )


def test_top_says_which_parts_could_not_be_read() -> None:
    nodes = NotRead("nodes", "nodes is forbidden", forbidden=True)
    snapshot = Snapshot(at=NOW, bindings=(a_binding(),), nodes=nodes, usage={}, unread=(nodes,))
    view = installation_view(snapshot)
    page = plain(top_page(view)).splitlines()
    assert page[1].split() == ["berlin", *["-"] * 10]
    assert page[-1] == "nodes are not shown: not allowed to list them"
    assert top_document(view, nodes=False)["notRead"] == ["nodes: nodes is forbidden"]
