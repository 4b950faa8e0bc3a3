"""The manager's settings: the contract's flags and defaults."""

from __future__ import annotations

from pathlib import Path

import pytest

from kubeocean.api.group import TAPESTRY, Domain
from kubeocean.errors import ConfigError
from kubeocean.manager.settings import ManagerSettings
from kubeocean.runtime.flags import BindAddress, parse, usage


def read(*words: str) -> ManagerSettings:
    settings = parse(ManagerSettings, list(words))
    assert settings is not None
    return settings


def test_defaults_are_those_of_the_contract() -> None:
    settings = read()
    assert settings.metrics_bind_address == BindAddress("", 8080, "--metrics-bind-address")
    assert settings.health_probe_bind_address == BindAddress(
        "", 8081, "--health-probe-bind-address"
    )
    assert settings.leader_elect is True
    assert settings.election_name == "kubeocean-manager-leader"
    assert settings.leader_election_namespace == ""
    assert (settings.lease_s, settings.renew_s, settings.retry_s) == (15, 10, 2)
    assert (settings.kube_client_qps, settings.kube_client_burst) == (0, 0)
    assert settings.label_domain == Domain("kubeocean.io")
    assert settings.deletion_deadline_s == 300


def test_the_flags_of_existing_charts_are_accepted() -> None:
    settings = read(
        "--leader-elect=false",
        "--leader-election-id",
        "",
        "--leader-election-namespace=ns",
        "--leader-election-lease-duration=30s",
        "--leader-election-renew-deadline=20s",
        "--leader-election-retry-period=3s",
        "--metrics-bind-address=0",
        "--health-probe-bind-address=127.0.0.1:9",
        "--kube-client-qps=100",
        "--kube-client-burst=200",
        "--zap-log-level=debug",
        "--zap-encoder=console",
        "--label-domain=tapestry.io",
    )
    assert settings.leader_elect is False
    assert settings.metrics_bind_address is None
    assert (settings.kube_client_qps, settings.kube_client_burst) == (100, 200)
    assert settings.label_domain == TAPESTRY
    assert settings.election_name == "tapestry-manager-leader"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--leader-election-renew-deadline=20s"], "--leader-election-lease-duration: must be"),
        (["--leader-election-retry-period=9s"], "--leader-election-renew-deadline: must be more"),
        (["--leader-election-retry-period=0s"], "--leader-election-retry-period: must be more"),
        (["--sharding", "--leader-elect=false"], "--sharding: needs an election"),
        (["--deletion-deadline=-1s"], "--deletion-deadline: must not be negative"),
        (["--cluster-binding-name=b"], "--cluster-binding-name: there is no such flag"),
    ],
)
def test_what_makes_no_sense_is_named(words: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read(*words)


def test_the_ring_is_in_the_namespace_of_the_election() -> None:
    config = read("--sharding").ring("here")
    assert (config.names.ring, config.sharding.namespace) == ("kubeocean-manager", "here")
    assert config.names.assigner == "kubeocean-manager-leader"


def test_template_directories_come_from_the_environment() -> None:
    assert ManagerSettings.templates({}) == (
        Path("/etc/kubeocean/syncer-template"),
        Path("/etc/kubeocean/proxier-template"),
    )
    environ = {"KUBEOCEAN_SYNCER_TEMPLATE_DIR": "/s", "KUBEOCEAN_PROXIER_TEMPLATE_DIR": "/p"}
    assert ManagerSettings.templates(environ) == (Path("/s"), Path("/p"))


def test_help_lists_the_flags_of_the_contract() -> None:
    text = usage(ManagerSettings, program="kubeocean manager", about="")
    for flag in (
        *("metrics-bind-address", "health-probe-bind-address", "leader-elect"),
        *("leader-election-id", "leader-election-namespace", "leader-election-lease-duration"),
        *("leader-election-renew-deadline", "leader-election-retry-period"),
        *("kube-client-qps", "kube-client-burst", "kubeconfig", "zap-devel"),
    ):
        assert f"--{flag}" in text
