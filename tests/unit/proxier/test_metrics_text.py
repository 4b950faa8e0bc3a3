"""Metrics of a kubelet, reduced to the pods of one virtual node under their virtual names."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from kubeocean.proxier.metrics_text import PodName, PodSample, rewrite, samples

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


def test_only_names_of_own_pods_change_and_other_pods_are_dropped() -> None:
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


def test_a_rewritten_page_is_valid_exposition_text() -> None:
    names = [family.name for family in text_string_to_metric_families(rewrite(TEXT, PODS))]
    assert names == ["container_cpu_usage_seconds", "probe_seconds"]


def test_labels_with_quotes_and_braces_are_parsed() -> None:
    line = r'm{image="a\"b}{c",namespace="worker",pod="web-1"} 1'
    assert rewrite(line, PODS) == r'm{image="a\"b}{c",namespace="team",pod="web"} 1' + "\n"


def test_a_sample_with_a_label_given_twice_is_dropped() -> None:
    line = 'm{namespace="worker",pod="web-1",pod="secret"} 1'
    assert rewrite(line, PODS) == ""


def test_a_pod_name_within_another_label_is_ignored() -> None:
    assert rewrite('m{image="namespace=\\"worker\\",pod=\\"web-1\\""} 1', PODS) == ""


def test_samples_of_own_pods_have_their_container_and_time() -> None:
    text = (
        'pod_cpu{namespace="worker",pod="web-1"} 1.5 1700000000123\n'
        'pod_cpu{container="main",namespace="worker",pod="db-2"} 2 soon\n'
        'pod_cpu{namespace="worker",pod="secret"} 40\n'
        'pod_cpus{namespace="worker",pod="web-1"} 3\n'
    )
    assert [*samples(text, "pod_cpu", PODS)] == [
        PodSample(PODS["worker", "web-1"], "", 1.5, 1700000000123),
        PodSample(PODS["worker", "db-2"], "main", 2.0),
    ]


def test_the_label_of_a_node_is_added_where_it_is_missing() -> None:
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
def test_a_sample_with_ambiguous_labels_is_dropped(labels: str) -> None:
    assert rewrite(f"m{{{labels}}} 1", PODS) == ""


@pytest.mark.parametrize("odd", ["a" * 300_000, '"' * 99_999, "a=" * 100_000, '\\"' * 100_000])
def test_a_very_long_line_is_rewritten_in_linear_time(odd: str) -> None:
    began = time.process_time()
    assert rewrite(f"m{{{odd}}} 1\nm{odd} 1\n", PODS) == ""
    assert time.process_time() - began < 5.0


def exposition_text() -> st.SearchStrategy[str]:
    """Return metrics as kubelets write them, with any value that a label can have."""
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
def test_samples_of_own_pods_keep_everything_but_names(text: str) -> None:
    def read(page: str) -> list[tuple[str, dict[str, str], float]]:
        return [
            (sample.name, sample.labels, sample.value)
            for family in text_string_to_metric_families(page)
            for sample in family.samples
        ]

    physical_names = {(pod.namespace, pod.name): key for key, pod in PODS.items()}
    rewritten = [
        (
            name,
            labels
            | dict(
                zip(
                    ("namespace", "pod"),
                    physical_names[labels["namespace"], labels["pod"]],
                    strict=True,
                )
            ),
        )
        for name, labels, _ in read(rewrite(text, PODS))
    ]
    own = [(n, ls) for n, ls, _ in read(text + "\n") if (ls["namespace"], ls["pod"]) in PODS]
    assert rewritten == own


@given(st.text(alphabet='abm{}="\\,\n #1 podnames', max_size=120))
def test_any_text_is_rewritten_without_names_of_other_pods(text: str) -> None:
    for line in rewrite(text + '\nm{namespace="worker",pod="secret"} 1\n', PODS).splitlines():
        assert 'pod="secret"' not in line


UID = "11111111-2222-3333-4444-555555555555"
OTHER_UID = "99999999-2222-3333-4444-555555555555"
KNOWN = {("worker", "web-1"): PodName("shop", "web", "u1", UID)}


@pytest.mark.parametrize(
    "label",
    [
        'pod_uid="{}"',
        'id="/kubepods/burstable/pod{}/abc"',
        'id="/kubelet.slice/kubelet-kubepods-pod{_}.slice/cri-containerd-abc.scope"',
    ],
)
def test_metrics_of_another_pod_that_had_the_name_are_dropped(label: str) -> None:
    def page(uid: str) -> str:
        identity = label.replace("{}", uid).replace("{_}", uid.replace("-", "_"))
        return f'x{{namespace="worker",pod="web-1",{identity}}} 1\n'

    assert 'pod="web"' in rewrite(page(UID), KNOWN)
    assert rewrite(page(OTHER_UID), KNOWN) == ""
    assert [*samples(page(OTHER_UID), "x", KNOWN)] == []
