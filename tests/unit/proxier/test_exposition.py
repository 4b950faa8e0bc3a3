"""Metrics of a node's own pods, under their virtual names, and of nobody else's."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from kubeocean.proxier.exposition import PodName, rewrite, totals
from kubeocean.proxier.summaries import summarize

PODS = {
    ("worker", "web-1"): PodName("team", "web", "u1"),
    ("worker", "db-2"): PodName("team", "db", "u2"),
}
TEXT = """\
# HELP container_cpu_usage_seconds_total CPU time
# TYPE container_cpu_usage_seconds_total counter
container_cpu_usage_seconds_total{container="",cpu="total",id="/",namespace="",pod=""} 99 17
container_cpu_usage_seconds_total{container="a",cpu="t",id="/x",namespace="worker",pod="web-1"} 0 17
container_cpu_usage_seconds_total{container="a",id="/y",namespace="worker",pod="secret"} 5 17
container_cpu_usage_seconds_total{container="b",id="/z",namespace="other",pod="web-1"} 7 17
# HELP machine_cpu_cores Cores
# TYPE machine_cpu_cores gauge
machine_cpu_cores{machine_id="abc"} 2
# HELP probe_seconds A histogram
# TYPE probe_seconds histogram
probe_seconds_bucket{namespace="worker",pod="db-2",pod_uid="p",le="+Inf"} 3
probe_seconds_sum{namespace="worker",pod="db-2",pod_uid="p"} 1.5
probe_seconds_count{namespace="worker",pod="db-2",pod_uid="p"} 3
bare_metric 4
not a sample at all {{{
"""


def test_only_own_pods_are_left_and_nothing_else_changes() -> None:
    assert rewrite(TEXT, PODS) == (
        "# HELP container_cpu_usage_seconds_total CPU time\n"
        "# TYPE container_cpu_usage_seconds_total counter\n"
        'container_cpu_usage_seconds_total{container="a",cpu="t",id="/x",namespace="team",'
        'pod="web"} 0 17\n'
        "# HELP probe_seconds A histogram\n"
        "# TYPE probe_seconds histogram\n"
        'probe_seconds_bucket{namespace="team",pod="db",pod_uid="u2",le="+Inf"} 3\n'
        'probe_seconds_sum{namespace="team",pod="db",pod_uid="u2"} 1.5\n'
        'probe_seconds_count{namespace="team",pod="db",pod_uid="u2"} 3\n'
    )


def test_what_comes_out_is_an_exposition() -> None:
    names = [family.name for family in text_string_to_metric_families(rewrite(TEXT, PODS))]
    assert names == ["container_cpu_usage_seconds", "probe_seconds"]


def test_labels_with_quotes_and_braces_are_read() -> None:
    line = r'm{image="a\"b}{c",namespace="worker",pod="web-1"} 1'
    assert rewrite(line, PODS) == r'm{image="a\"b}{c",namespace="team",pod="web"} 1' + "\n"


def test_a_label_given_twice_hides_the_line() -> None:
    line = 'm{namespace="worker",pod="web-1",pod="secret"} 1'
    assert rewrite(line, PODS) == ""


def test_a_name_in_another_label_is_no_name() -> None:
    assert rewrite('m{image="namespace=\\"worker\\",pod=\\"web-1\\""} 1', PODS) == ""


def test_sums_are_of_own_pods() -> None:
    text = (
        'pod_cpu{namespace="worker",pod="web-1"} 1.5\n'
        'pod_cpu{namespace="worker",pod="db-2"} 2\n'
        'pod_cpu{namespace="worker",pod="secret"} 40\n'
    )
    assert totals(text, "pod_cpu", PODS) == 3.5


@given(st.text(alphabet='abm{}="\\,\n #1 podnames', max_size=120))
def test_any_text_is_rewritten_without_a_foreign_name(text: str) -> None:
    for line in rewrite(text + '\nm{namespace="worker",pod="secret"} 1\n', PODS).splitlines():
        assert 'pod="secret"' not in line


def test_a_summary_is_of_own_pods_under_their_names() -> None:
    summary = {
        "node": {
            "nodeName": "n1",
            "cpu": {"time": "t", "usageNanoCores": 1000, "usageCoreNanoSeconds": 10_000},
            "memory": {"time": "t", "workingSetBytes": 999},
            "fs": {"usedBytes": 1},
        },
        "pods": [
            {
                "podRef": {"name": "web-1", "namespace": "worker", "uid": "p1"},
                "cpu": {"usageNanoCores": 5, "usageCoreNanoSeconds": 50},
                "memory": {"workingSetBytes": 7},
                "containers": [{"name": "a"}],
            },
            {"podRef": {"name": "secret", "namespace": "worker", "uid": "p2"}},
        ],
    }
    assert summarize(summary, "vnode-x", PODS) == {
        "node": {
            "nodeName": "vnode-x",
            "cpu": {"time": "t", "usageNanoCores": 5, "usageCoreNanoSeconds": 50},
            "memory": {"time": "t", "workingSetBytes": 7},
        },
        "pods": [
            {
                "podRef": {"name": "web", "namespace": "team", "uid": "u1"},
                "cpu": {"usageNanoCores": 5, "usageCoreNanoSeconds": 50},
                "memory": {"workingSetBytes": 7},
                "containers": [{"name": "a"}],
            }
        ],
    }


def test_a_summary_that_is_nonsense_is_an_empty_one() -> None:
    odd = {"node": 3, "pods": [None, 4, {"podRef": "x"}]}
    assert summarize(odd, "v", PODS) == {"node": {"nodeName": "v"}, "pods": []}
