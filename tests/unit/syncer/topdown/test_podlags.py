"""How far each side of a pod is behind the other."""

from __future__ import annotations

from kubeocean.runtime.clock import VirtualClock
from kubeocean.runtime.metrics import Metrics
from kubeocean.runtime.objects import Key
from kubeocean.syncer.topdown.podlags import PodLags

KEY = Key("team", "web")


async def test_lags_are_counted_once_for_each_change() -> None:
    clock, metrics = VirtualClock(), Metrics()
    lags = PodLags("east", clock, metrics)
    lags.bound(KEY)
    await clock.advance(0.5)
    lags.bound(KEY)  # the first sight counts
    lags.created(KEY)
    lags.created(KEY)
    lags.changed(KEY)
    lags.shown(KEY, written=False)  # nothing of it concerned the virtual pod
    lags.shown(KEY, written=True)
    lags.changed(KEY)
    lags.shown(KEY, written=True)
    text = metrics.render().decode()
    label = '{cluster_binding="east"}'
    assert f"kubeocean_pod_create_lag_seconds_count{label} 1.0" in text
    assert f"kubeocean_pod_create_lag_seconds_sum{label} 0.5" in text
    assert f"kubeocean_pod_status_lag_seconds_count{label} 1.0" in text


async def test_what_runs_already_or_is_gone_does_not_count() -> None:
    metrics = Metrics()
    lags = PodLags("east", VirtualClock(), metrics)
    lags.bound(KEY)
    lags.runs(KEY)
    lags.created(KEY)
    lags.bound(KEY)
    lags.changed(KEY)
    lags.forget(KEY)
    lags.created(KEY)
    lags.shown(KEY, written=True)
    text = metrics.render().decode()
    assert 'kubeocean_pod_create_lag_seconds_count{cluster_binding="east"} 0.0' in text
    assert 'kubeocean_pod_status_lag_seconds_count{cluster_binding="east"} 0.0' in text
