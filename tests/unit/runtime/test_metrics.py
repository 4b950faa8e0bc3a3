"""Metrics: one registry each, the same instrument for the same shape, standard text."""

from __future__ import annotations

import pytest
from prometheus_client import REGISTRY
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from kubeocean.errors import InvariantError
from kubeocean.runtime.metrics import Family, Metrics, Readings


def test_the_same_shape_gives_the_same_instrument() -> None:
    metrics = Metrics()
    assert metrics.counter("a_total", "a") is metrics.counter("a_total", "other words")
    assert metrics.gauge("b", "b", ["x"]) is metrics.gauge("b", "b", ("x",))
    assert metrics.histogram("c", "c", buckets=[1, 2]) is metrics.histogram(
        "c", "c", buckets=(1.0, 2.0)
    )


def test_a_counter_is_one_series_with_or_without_its_suffix() -> None:
    metrics = Metrics()
    assert metrics.counter("a", "a") is metrics.counter("a_total", "a")


@pytest.mark.parametrize("ask", ["counter", "gauge", "labels", "buckets"])
def test_another_shape_under_a_known_name_is_a_bug(ask: str) -> None:
    metrics = Metrics()
    metrics.histogram("taken", "first", ["x"], buckets=[1, 2])
    with pytest.raises(InvariantError, match="taken"):
        match ask:
            case "counter":
                metrics.counter("taken", "second", ["x"])
            case "gauge":
                metrics.gauge("taken", "second", ["x"])
            case "labels":
                metrics.histogram("taken", "second", ["y"], buckets=[1, 2])
            case _:
                metrics.histogram("taken", "second", ["x"], buckets=[1, 3])


def test_a_name_whose_series_clash_with_another_is_a_bug() -> None:
    metrics = Metrics()
    metrics.histogram("wait", "w")
    with pytest.raises(InvariantError, match="wait_count"):
        metrics.gauge("wait_count", "clashes with the histogram's own series")


def test_a_name_that_prometheus_refuses_is_a_bug() -> None:
    with pytest.raises(InvariantError, match="le"):
        Metrics().histogram("h", "h", ["le"])


def test_nothing_reaches_the_process_wide_registry() -> None:
    Metrics().counter("kubeocean_private_total", "private").inc()
    assert REGISTRY.get_sample_value("kubeocean_private_total") is None


def test_two_registries_do_not_see_each_other() -> None:
    one, two = Metrics(), Metrics()
    one.counter("n_total", "n").inc(3)
    two.counter("n_total", "n")
    assert (one.value("n_total"), two.value("n_total")) == (3, 0)


def test_a_sample_that_was_never_made_has_no_value() -> None:
    metrics = Metrics()
    metrics.counter("n_total", "n", ["x"])
    assert metrics.value("n_total", {"x": "1"}) is None


def test_the_text_format_parses_and_shows_no_creation_times() -> None:
    metrics = Metrics()
    metrics.counter("jobs", "Jobs done", ["kind"]).labels('a\n"b"').inc(2)
    metrics.histogram("took_seconds", "Time", buckets=[1]).observe(0.5)
    text = metrics.render().decode()
    assert "_created" not in text
    samples = {(s.name, *s.labels.values()): s.value for f in parse_text(text) for s in f.samples}
    assert samples["jobs_total", 'a\n"b"'] == 2
    assert samples["took_seconds_bucket", "1.0"] == 1
    assert metrics.content_type() == "text/plain; version=0.0.4; charset=utf-8"


def test_openmetrics_is_rendered_where_the_client_accepts_it() -> None:
    metrics = Metrics()
    metrics.counter("jobs", "Jobs done").inc()
    accept = "application/openmetrics-text;version=1.0.0,text/plain;q=0.5"
    text = metrics.render(accept).decode()
    assert text.endswith("# EOF\n")
    assert [f.name for f in parse_openmetrics(text)] == ["jobs"]
    assert metrics.content_type(accept).startswith("application/openmetrics-text")


def test_constant_labels_are_on_every_sample() -> None:
    metrics = Metrics(constant={"cluster": "w1"})
    metrics.counter("jobs", "Jobs done").inc()
    metrics.gauge("size", "Size", ["of"]).labels("x").set(1)
    text = metrics.render().decode()
    assert 'jobs_total{cluster="w1"} 1.0' in text
    assert 'size{cluster="w1",of="x"} 1.0' in text


def test_a_label_cannot_hide_a_constant_one() -> None:
    with pytest.raises(InvariantError, match="cluster"):
        Metrics(constant={"cluster": "w1"}).gauge("g", "g", ["cluster"])


def test_the_process_is_measured_where_asked() -> None:
    assert b"process_resident_memory_bytes" in Metrics(process=True).render()
    assert b"python_gc_collections" in Metrics(process=True).render()
    assert Metrics().render() == b""


SIZES = Family("size", "Sizes", ("of",))
COUNTS = Family("count_total", "Counts")


def test_gauges_that_are_read_show_what_there_is_now() -> None:
    sizes = {"a": 1.0, "b": 2.0}
    metrics = Metrics()

    def read() -> Readings:
        return {"size": [((name,), size) for name, size in sizes.items()], "count_total": [((), 2)]}

    metrics.read_gauges([SIZES, COUNTS], read)
    assert metrics.value("size", {"of": "b"}) == 2
    assert metrics.value("count_total") == 2
    del sizes["b"]
    sizes["a"] = 3
    assert 'size{of="a"} 3.0' in metrics.render().decode()
    assert metrics.value("size", {"of": "b"}) is None


def test_gauges_that_are_read_parse_in_both_forms() -> None:
    metrics = Metrics(constant={"cluster": "w1"})
    metrics.read_gauges(
        [SIZES, COUNTS], lambda: {"size": [(('a"\n',), 1)], "count_total": [((), 2)]}
    )
    plain = {
        (s.name, *s.labels.values()): s.value
        for f in parse_text(metrics.render().decode())
        for s in f.samples
    }
    assert plain == {("size", "w1", 'a"\n'): 1, ("count_total", "w1"): 2}
    text = metrics.render("application/openmetrics-text").decode()
    assert [family.name for family in parse_openmetrics(text)] == ["size", "count_total"]


def test_gauges_are_read_only_at_a_scrape() -> None:
    def read() -> Readings:
        raise AssertionError

    Metrics().read_gauges([SIZES], read)


def test_a_gauge_that_is_read_cannot_have_a_name_or_label_of_another() -> None:
    metrics = Metrics(constant={"of": "me"})
    metrics.counter("count_total", "Counts")
    with pytest.raises(InvariantError, match="count_total"):
        metrics.read_gauges([COUNTS], dict)
    with pytest.raises(InvariantError, match="size"):
        metrics.read_gauges([SIZES], dict)
