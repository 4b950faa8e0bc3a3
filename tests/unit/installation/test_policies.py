"""Leases as they are written on a command line."""

from __future__ import annotations

import pytest

from kubeocean.api.group import DEFAULT
from kubeocean.api.policy import PolicySpec, ResourceLimit, TimeWindow
from kubeocean.errors import ConfigError
from kubeocean.installation.bindings import Joining
from kubeocean.installation.policies import limits, policy, windows

WEEK = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday")


def test_a_limit_is_a_share_or_an_amount() -> None:
    assert limits("cpu=50%, memory=8Gi") == (
        ResourceLimit("cpu", percent=50),
        ResourceLimit("memory", "8Gi"),
    )
    assert limits("all") == limits("") == ()


@pytest.mark.parametrize("wrong", ["cpu", "cpu=", "cpu=0%", "cpu=101%", "cpu=x%", "cpu=1,cpu=2"])
def test_a_limit_that_is_neither_is_refused(wrong: str) -> None:
    with pytest.raises(ConfigError, match="--lease"):
        limits(wrong)


def test_a_quantity_is_checked_as_a_syncer_does() -> None:
    spec = PolicySpec("b", resource_limits=limits("cpu=lots"))
    with pytest.raises(ConfigError, match=r"spec.resourceLimits\[0\].quantity"):
        policy("b", spec, domain=DEFAULT)


@pytest.mark.parametrize(
    ("said", "meant"),
    [
        ("20:00-06:00", TimeWindow("20:00", "06:00")),
        ("20:00-06:00 Mon-Fri", TimeWindow("20:00", "06:00", WEEK)),
        ("00:00-23:59@sat,Sunday", TimeWindow("00:00", "23:59", ("Saturday", "Sunday"))),
        ("08:00-09:00 Sun-Mon", TimeWindow("08:00", "09:00", ("Sunday", "Monday"))),
    ],
)
def test_a_window_is_a_span_and_days(said: str, meant: TimeWindow) -> None:
    assert windows([said]) == (meant,)


@pytest.mark.parametrize("wrong", ["20:00", "evening", "20:00-06:00 Someday"])
def test_a_window_that_is_none_is_refused(wrong: str) -> None:
    with pytest.raises(ConfigError, match="--between"):
        windows([wrong])


def test_an_hour_that_is_none_is_refused() -> None:
    spec = PolicySpec("b", time_windows=windows(["25:00-06:00"]))
    with pytest.raises(ConfigError, match=r"spec.timeWindows\[0\].start.*25:00"):
        policy("b", spec, domain=DEFAULT)


def test_a_worker_is_bound_under_its_name() -> None:
    joining = Joining(name="berlin", lease=PolicySpec("berlin", time_zone="Europe/Berlin"))
    assert joining.binding()["spec"] == {
        "clusterID": "berlin",
        "secretRef": {"name": "berlin-kubeconfig", "namespace": "kubeocean-system"},
        "mountNamespace": "kubeocean-worker",
    }
    made = joining.policy()
    assert made is not None
    assert made["spec"] == {"cluster": "berlin", "timeZone": "Europe/Berlin"}
    assert Joining(name="berlin").policy() is None


@pytest.mark.parametrize(
    ("name", "cluster_id", "said"),
    [
        ("berlin", "Not an id", "--cluster-id.*Not an id"),
        ("a-name-that-is-too-long-for-an-id", "", "--cluster-id"),
        ("Berlin!", "berlin", "NAME.*Berlin!"),
    ],
)
def test_a_name_that_cannot_be_one_is_refused(name: str, cluster_id: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        Joining(name=name, cluster_id=cluster_id)
