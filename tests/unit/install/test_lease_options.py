"""Leases as they are written on a command line."""

from __future__ import annotations

import msgspec
import pytest

from kubeocean.api.bindings import ClusterBinding
from kubeocean.api.policies import PolicySpec, ResourceLimit, TimeWindow
from kubeocean.errors import ConfigError
from kubeocean.install.join import JoinRequest, join_command
from kubeocean.install.lease_options import limits, windows
from kubeocean.install.values import LENDABLE

WEEK = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday")


def test_a_limit_is_a_percentage_or_a_quantity() -> None:
    assert limits("cpu=50%, memory=8Gi") == (
        ResourceLimit("cpu", percent=50),
        ResourceLimit("memory", "8Gi"),
    )
    assert limits("all") == limits("") == ()


@pytest.mark.parametrize("wrong", ["cpu", "cpu=", "cpu=0%", "cpu=101%", "cpu=x%", "cpu=1,cpu=2"])
def test_an_invalid_limit_is_refused(wrong: str) -> None:
    with pytest.raises(ConfigError, match="--lease"):
        limits(wrong)


def test_a_quantity_is_validated_as_in_a_syncer() -> None:
    with pytest.raises(ConfigError, match=r"--lease: cpu: must be a quantity .*got 'lots'"):
        limits("cpu=lots")
    with pytest.raises(ConfigError, match=r"--lease: cpu: must be zero or more"):
        limits("cpu=-1")


@pytest.mark.parametrize(
    ("message", "meant"),
    [
        ("20:00-06:00", TimeWindow("20:00", "06:00")),
        ("20:00-06:00 Mon-Fri", TimeWindow("20:00", "06:00", WEEK)),
        ("00:00-23:59@sat,Sunday", TimeWindow("00:00", "23:59", ("Saturday", "Sunday"))),
        ("08:00-09:00 Sun-Mon", TimeWindow("08:00", "09:00", ("Sunday", "Monday"))),
    ],
)
def test_a_window_is_a_time_span_with_days(message: str, meant: TimeWindow) -> None:
    assert windows([message]) == (meant,)


@pytest.mark.parametrize("wrong", ["20:00", "evening", "20:00-06:00 Someday"])
def test_an_invalid_window_is_refused(wrong: str) -> None:
    with pytest.raises(ConfigError, match="--between"):
        windows([wrong])


@pytest.mark.parametrize("wrong", ["25:00-06:00", "20:00-24:00", "8:00-9:00"])
def test_an_invalid_hour_is_refused(wrong: str) -> None:
    with pytest.raises(ConfigError, match=rf"--between: must be a time of day .*got '{wrong}'"):
        windows([wrong])


def test_a_window_that_begins_when_it_ends_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"--between: begins when it ends.*'20:00-20:00 Mon'"):
        windows(["20:00-20:00 Mon"])


def test_a_lease_is_validated_before_the_first_write() -> None:
    with pytest.raises(ConfigError, match=r"--zone: must be an IANA time zone.*got 'Mars'"):
        JoinRequest(name="b", lease=PolicySpec("b", time_zone="Mars"))


def test_a_join_request_gives_a_binding_and_a_policy() -> None:
    request = JoinRequest(name="berlin", lease=PolicySpec("berlin", time_zone="Europe/Berlin"))
    assert request.binding()["spec"] == {
        "clusterID": "berlin",
        "secretRef": {"name": "berlin-kubeconfig", "namespace": "kubeocean-system"},
        "nodeSelector": LENDABLE,
        "mountNamespace": "kubeocean-worker",
    }
    made = request.policy()
    assert made is not None
    assert made["spec"] == {"cluster": "berlin", "timeZone": "Europe/Berlin"}
    assert JoinRequest(name="berlin").policy() is None


def test_the_join_command_of_a_binding_repeats_its_options() -> None:
    request = JoinRequest(name="b", cluster_id="c", service_namespaces=("a", "z"))
    stored = msgspec.convert(request.binding(), ClusterBinding)
    again = "kubeocean join b --kubeconfig FILE --cluster-id c"
    again += " --service-namespace a --service-namespace z"
    assert join_command(stored, "--renew") == f"{again} --renew"


@pytest.mark.parametrize(
    ("name", "cluster_id", "message"),
    [
        ("berlin", "Not an id", "--cluster-id.*Not an id"),
        ("a-name-that-is-too-long-for-an-id", "", "NAME: must be at most.*other --cluster-id"),
        ("Berlin", "berlin", "NAME: must be a lowercase DNS subdomain.*Berlin"),
        ("Berlin!", "berlin", "NAME.*Berlin!"),
    ],
)
def test_an_invalid_name_is_refused(name: str, cluster_id: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        JoinRequest(name=name, cluster_id=cluster_id)
