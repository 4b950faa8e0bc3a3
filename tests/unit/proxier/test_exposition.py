"""Metrics of a node's own pods, under their virtual names, and of nobody else's."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from kubeocean.proxier.exposition import PodName, rewrite, samples
from kubeocean.proxier.summaries import summarize
from kubeocean.runtime.objects import Json

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


def test_values_are_of_own_pods_with_their_times() -> None:
    text = (
        'pod_cpu{namespace="worker",pod="web-1"} 1.5 1700000000123\n'
        'pod_cpu{namespace="worker",pod="db-2"} 2\n'
        'pod_cpu{namespace="worker",pod="secret"} 40\n'
        'pod_cpus{namespace="worker",pod="web-1"} 3\n'
    )
    assert [*samples(text, "pod_cpu", PODS)] == [
        (PODS["worker", "web-1"], 1.5, "1700000000123"),
        (PODS["worker", "db-2"], 2.0, ""),
    ]


def test_the_label_of_a_node_is_added_where_there_is_none() -> None:
    line = 'm{namespace="worker",pod="web-1"} 1'
    assert rewrite(line, PODS, node="v1") == 'm{namespace="team",pod="web",node="v1"} 1\n'
    line = 'm{node="own",namespace="worker",pod="web-1"} 1'
    assert rewrite(line, PODS, node="v1") == 'm{node="own",namespace="team",pod="web"} 1\n'


@pytest.mark.parametrize(
    "labels",
    [
        'namespace="worker" pod="web-1"',
        'x;namespace="worker",pod="web-1"',
        'namespace="worker",pod="web-1",,',
        'namespace="worker",pod="web-1',
        '"quoted",namespace="worker",pod="web-1"',
    ],
)
def test_labels_that_could_be_read_in_two_ways_hide_the_line(labels: str) -> None:
    assert rewrite(f"m{{{labels}}} 1", PODS) == ""


@pytest.mark.parametrize("odd", ["a" * 300_000, '"' * 99_999, "a=" * 100_000, '\\"' * 100_000])
def test_a_very_long_line_takes_no_time(odd: str) -> None:
    began = time.monotonic()
    assert rewrite(f"m{{{odd}}} 1\nm{odd} 1\n", PODS) == ""
    assert time.monotonic() - began < 5.0


def exposition_text() -> st.SearchStrategy[str]:
    """Metrics as kubelets write them, with any value that a label can have."""
    value = st.text(alphabet=st.sampled_from('ab\\"{}\n,= #'), max_size=8).map(_escaped)
    name = st.sampled_from(["web-1", "db-2", "secret", ""])
    line = st.builds(
        lambda metric, pod, other, number: (
            f'{metric}{{image="{other}",namespace="worker",pod="{pod}",id="{other}"}} {number}'
        ),
        st.sampled_from(["a_total", "b_bucket", "c"]),
        name,
        value,
        st.one_of(st.integers(), st.floats(allow_nan=False, allow_infinity=False)),
    )
    return st.lists(line, max_size=12).map("\n".join)


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


@given(exposition_text())
def test_nothing_is_lost_of_own_pods_but_names(text: str) -> None:
    def read(page: str) -> list[tuple[str, dict[str, str], float]]:
        return [
            (sample.name, sample.labels, sample.value)
            for family in text_string_to_metric_families(page)
            for sample in family.samples
        ]

    back = {(pod.namespace, pod.name): key for key, pod in PODS.items()}
    found = [
        (
            name,
            labels
            | dict(
                zip(("namespace", "pod"), back[labels["namespace"], labels["pod"]], strict=True)
            ),
        )
        for name, labels, _ in read(rewrite(text, PODS))
    ]
    own = [(n, ls) for n, ls, _ in read(text + "\n") if (ls["namespace"], ls["pod"]) in PODS]
    assert found == own


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


BELOW = "11111111-2222-3333-4444-555555555555"
OTHER = "99999999-2222-3333-4444-555555555555"
KNOWN = {("below", "web-1"): PodName("shop", "web", "u1", BELOW)}


@pytest.mark.parametrize(
    "label",
    [
        'pod_uid="{}"',
        'id="/kubepods/burstable/pod{}/abc"',
        'id="/kubelet.slice/kubelet-kubepods-pod{_}.slice/cri-containerd-abc.scope"',
    ],
)
def test_figures_of_another_pod_that_had_the_name_are_not_shown(label: str) -> None:
    def page(uid: str) -> str:
        said = label.replace("{}", uid).replace("{_}", uid.replace("-", "_"))
        return f'x{{namespace="below",pod="web-1",{said}}} 1\n'

    assert 'pod="web"' in rewrite(page(BELOW), KNOWN)
    assert rewrite(page(OTHER), KNOWN) == ""
    assert [*samples(page(OTHER), "x", KNOWN)] == []


def test_a_summary_of_another_pod_that_had_the_name_is_not_shown() -> None:
    def pods(uid: str) -> list[Json]:
        pod: Json = {"podRef": {"namespace": "below", "name": "web-1", "uid": uid}}
        return list(summarize({"node": {}, "pods": [pod]}, "v", KNOWN)["pods"])

    assert [pod["podRef"]["name"] for pod in pods(BELOW)] == ["web"]
    assert pods(OTHER) == []
