"""Tests of the validation of values."""

from __future__ import annotations

import pytest

from kubeocean.errors import ConfigError
from kubeocean.install.roles import AddOn
from kubeocean.install.values import Size, Values, WorkerValues, add_ons, amounts, toleration
from kubeocean.runtime.objects import Json
from kubeocean.runtime.quantity import Quantity


def test_larger_sizes_have_more_resources() -> None:
    for less, more in ((Size.SMALL, Size.MEDIUM), (Size.MEDIUM, Size.LARGE)):
        for part in ("requests", "limits"):
            for resource in ("cpu", "memory"):
                below, above = (each.resources[part][resource] for each in (less, more))
                assert Quantity.parse(below) < Quantity.parse(above)


@pytest.mark.parametrize(
    ("wrong", "field"),
    [
        ({"image": ""}, "image"),
        ({"image": "a b"}, "image"),
        ({"replicas": 0}, "replicas"),
        ({"log_level": "loud"}, "log level"),
        ({"time_zone": "Mars/Olympus"}, "time zone"),
        ({"kubeconfig_namespaces": ("Team A",)}, "kubeconfig namespace"),
        ({"tolerations": ("",)}, "toleration"),
        ({"tolerations": ("key:Sometimes",)}, "toleration"),
    ],
)
def test_what_makes_no_sense_is_named(wrong: dict[str, object], field: str) -> None:
    with pytest.raises(ConfigError) as raised:
        Values(**wrong)
    assert raised.value.field == field


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("key", {"key": "key", "operator": "Exists"}),
        ("key:NoExecute", {"key": "key", "operator": "Exists", "effect": "NoExecute"}),
        ("k=a:NoSchedule", {"key": "k", "operator": "Equal", "value": "a", "effect": "NoSchedule"}),
    ],
)
def test_a_toleration_is_parsed_from_a_taint(written: str, meant: Json) -> None:
    assert toleration(written) == meant


def test_a_mount_namespace_is_a_dns_name() -> None:
    with pytest.raises(ConfigError, match="mount namespace"):
        WorkerValues(namespace="Not A Name")


def test_roles_of_other_mount_namespaces_have_other_names() -> None:
    assert WorkerValues().cluster_role == "kubeocean-syncer"
    assert WorkerValues(namespace="team").cluster_role == "kubeocean-syncer-team"
    assert WorkerValues().metrics_role == "kubeocean-metrics"
    assert WorkerValues(namespace="team").metrics_role == "kubeocean-metrics-team"


@pytest.mark.parametrize(
    ("message", "meant"),
    [
        ([], ()),
        (["none"], ()),
        (["all"], tuple(AddOn)),
        (["metrics,volumes"], (AddOn.VOLUMES, AddOn.METRICS)),
        (["metrics", "volumes"], (AddOn.VOLUMES, AddOn.METRICS)),
    ],
)
def test_add_ons_are_parsed_from_names(message: list[str], meant: tuple[AddOn, ...]) -> None:
    assert add_ons(message) == meant


def test_an_unknown_add_on_is_named_with_the_known_ones() -> None:
    with pytest.raises(ConfigError, match=r"volumes, node-labels.*'secrets'"):
        add_ons(["secrets"])


def test_amounts_are_parsed_from_names_and_quantities() -> None:
    text = "pods=100, requests.cpu=20"
    assert amounts(text, source="--quota") == {"pods": "100", "requests.cpu": "20"}
    for wrong in ("pods", "pods=", "=1", "pods=many", "pods=1,pods=2"):
        with pytest.raises(ConfigError, match="--quota"):
            amounts(wrong, source="--quota")
