"""The syncer's settings: the contract's flags and defaults, and errors that name flag and value."""

from __future__ import annotations

from datetime import UTC
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubeocean.api.group import TAPESTRY, Domain
from kubeocean.errors import ConfigError
from kubeocean.runtime.election import Campaign, LockEntry, Record
from kubeocean.runtime.flags import BindAddress, parse, usage
from kubeocean.syncer.settings import Address, Given, SyncerSettings


class NoLock:
    async def read(self) -> LockEntry | None:
        return None

    async def create(self, record: Record) -> LockEntry:
        raise AssertionError

    async def update(self, record: Record, version: str) -> LockEntry:
        raise AssertionError


def read(*words: str) -> SyncerSettings:
    settings = parse(SyncerSettings, ["--cluster-binding-name=b", *words])
    assert settings is not None
    return settings


def test_the_defaults_are_the_contracts() -> None:
    settings = read()
    assert settings.metrics_bind_address == BindAddress("", 8080, "--metrics-bind-address")
    assert settings.health_probe_bind_address == BindAddress(
        "", 8081, "--health-probe-bind-address"
    )
    assert settings.leader_elect is True
    assert settings.election_name == "kubeocean-syncer-b"
    assert settings.prometheus_vnode_base_port == 9006
    assert settings.virtual_client_qps == settings.physical_client_qps == 0
    assert settings.virtual_client_burst == settings.physical_client_burst == 0
    assert (settings.lease_s, settings.renew_s, settings.retry_s) == (15, 10, 2)
    assert settings.label_domain == Domain("kubeocean.io")
    assert settings.allow_exec_plugins is False
    assert settings.kubeconfig == settings.leader_election_namespace == settings.time_zone == ""


def test_flags_of_existing_templates_are_accepted() -> None:
    settings = read(
        "--leader-elect=false",
        "--metrics-bind-address=0",
        "--health-probe-bind-address=127.0.0.1:9",
        "--virtual-client-qps=100",
        "--virtual-client-burst=200",
        "--physical-client-qps",
        "0.5",
        "--physical-client-burst",
        "1",
        "--prometheus-vnode-base-port=9007",
        "--zap-log-level=debug",
        "--leader-election-id=kubeocean-syncer-id",
        "--label-domain=tapestry.io",
    )
    assert settings.leader_elect is False
    assert settings.metrics_bind_address is None
    assert str(settings.health_probe_bind_address) == "127.0.0.1:9"
    assert (settings.virtual_client_qps, settings.virtual_client_burst) == (100, 200)
    assert (settings.physical_client_qps, settings.physical_client_burst) == (0.5, 1)
    assert settings.prometheus_vnode_base_port == 9007
    assert settings.log_level == "debug"
    assert settings.election_name == "kubeocean-syncer-id"
    assert settings.label_domain == TAPESTRY


def test_nodes_of_silent_workers_stay_unless_a_flag_says_when_they_go() -> None:
    assert read().remove_nodes_after_s == 0
    assert read("--remove-unreachable-nodes-after=24h").remove_nodes_after_s == 86400


def test_proxiers_are_looked_for_in_the_namespace_of_their_templates() -> None:
    environ = {"KUBEOCEAN_PROXIER_NAMESPACE": "there"}
    assert read("--proxier-namespace=edge").namespace_of_proxiers(environ) == "edge"
    assert read().namespace_of_proxiers(environ) == "there"
    assert read().namespace_of_proxiers({}) == ""


def test_the_lease_follows_the_domain() -> None:
    assert read("--label-domain=tapestry.io").election_name == "tapestry-syncer-b"
    assert read("--label-domain=").label_domain == Domain("kubeocean.io")


def test_a_ring_is_named_after_the_binding_and_elected_where_leaders_are() -> None:
    settings = read("--sharding", "--leader-election-lease-duration=90s")
    config = settings.ring("here")
    assert (config.names.ring, config.sharding.namespace) == ("kubeocean-syncer-b", "here")
    assert config.names.assigner == settings.election_name
    assert config.names.domain == "sharding.kubeocean.io"
    timing = config.timing()
    assert (timing.lease_s, timing.renew_s, timing.retry_s) == (90, 10, 2)
    assert not read().sharding


def test_the_time_zone_is_the_flags_or_the_machines() -> None:
    assert read("--time-zone=Asia/Shanghai").zone({"TZ": "UTC"}) == ZoneInfo("Asia/Shanghai")
    assert read().zone({"TZ": "Asia/Tokyo"}) == ZoneInfo("Asia/Tokyo")
    assert read().zone({"TZ": ""}) is UTC


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--cluster-binding-name=A,b"], "--cluster-binding-name: must be a lowercase DNS subdom"),
        (["--cluster-binding-name="], "--cluster-binding-name: is required"),
        (["--leader-election-id=X"], "--leader-election-id: must be a lowercase DNS subdomain"),
        (["--leader-election-namespace=X"], "--leader-election-namespace: must be a lowercase"),
        (["--label-domain=no domain"], "--label-domain: must be a lowercase DNS subdomain"),
        (["--sharding", "--leader-elect=false"], "--sharding: needs an election"),
        (["--time-zone=Mars"], "--time-zone: must be a name of the tz database"),
        (["--prometheus-vnode-base-port=0"], "--prometheus-vnode-base-port: must be a port, 1"),
        (["--prometheus-vnode-base-port=65536"], "--prometheus-vnode-base-port: must be a port"),
        (["--prometheus-vnode-base-port=x"], "--prometheus-vnode-base-port: must be a whole"),
        (["--virtual-client-qps=many"], "--virtual-client-qps: must be a number (got 'many')"),
        (["--metrics-bind-address=8080"], "--metrics-bind-address: must be :PORT"),
        (["--leader-election-retry-period=0"], "--leader-election-retry-period: must be more th"),
        (
            ["--leader-election-renew-deadline=2s"],
            "--leader-election-renew-deadline: must be more than 1.2 times "
            "--leader-election-retry-period (2s) (got '2s')",
        ),
        (
            ["--leader-election-lease-duration=10s"],
            "--leader-election-lease-duration: must be more than "
            "--leader-election-renew-deadline (10s) (got '10s')",
        ),
    ],
)
def test_an_error_names_the_flag_and_its_value(words: list[str], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read(*words)
    assert str(caught.value).startswith(message)


seconds = st.integers(-5, 100).map(lambda tenths: tenths / 10)


@given(lease_s=seconds, renew_s=seconds, retry_s=seconds)
def test_timings_of_the_election_are_validated(
    lease_s: float, renew_s: float, retry_s: float
) -> None:
    def taken(make: object) -> bool:
        assert callable(make)
        try:
            make()
        except ConfigError:
            return False
        return True

    times = {"lease_s": lease_s, "renew_s": renew_s, "retry_s": retry_s}
    assert taken(lambda: SyncerSettings(cluster_binding_name="b", **times)) == taken(
        lambda: Campaign(NoLock(), name="b", **times)
    )


def test_help_describes_every_flag() -> None:
    shown = usage(SyncerSettings, program="kubeocean syncer", about="Lends.")
    for line in (
        "--cluster-binding-name (required)",
        "--leader-elect (default true)",
        "--metrics-bind-address (default :8080)",
        "--health-probe-bind-address (default :8081)",
        "--prometheus-vnode-base-port (default 9006)",
        "--leader-election-lease-duration (default 15s)",
        "--label-domain (default kubeocean.io)",
        "--zap-encoder",
    ):
        assert f"  {line}" in shown


def test_the_computing_clusters_addresses_come_from_services_unless_flags_set_them() -> None:
    assert read().given == Given(cluster_domain="cluster.local", server=None, dns=None)
    given = read(
        "--cluster-domain=ocean.example",
        "--kubernetes-service-address=10.0.0.9:6443",
        "--dns-service-address=10.0.0.10",
    ).given
    assert given.cluster_domain == "ocean.example"
    assert given.server == Address("10.0.0.9", 6443)
    assert given.dns == Address("10.0.0.10")


@pytest.mark.parametrize(
    ("written", "address"),
    [
        ("api.example.com", Address("api.example.com", 443)),
        ("api.example.com:6443", Address("api.example.com", 6443)),
        ("10.0.0.9", Address("10.0.0.9", 443)),
        ("fd00::9", Address("fd00::9", 443)),
        ("[fd00::9]", Address("fd00::9", 443)),
        ("[FD00::9]:6443", Address("fd00::9", 6443)),
        ("", None),
    ],
)
def test_an_api_server_is_set_by_address_or_name(written: str, address: Address | None) -> None:
    assert read(f"--kubernetes-service-address={written}").given.server == address


@pytest.mark.parametrize(
    ("flag", "written", "message"),
    [
        ("kubernetes-service-address", "https://api:6443", "must be an IP address or a"),
        ("kubernetes-service-address", "api:0", "must be a port, 1 to 65535"),
        ("kubernetes-service-address", "api:", "must be a whole number"),
        ("kubernetes-service-address", ":443", "must be an IP address or a"),
        ("kubernetes-service-address", "[::g]:443", "must be an IP address or a"),
        ("dns-service-address", "10.0.0.300", "must be an IP address or a lowercase DNS name"),
        ("dns-service-address", "10.0.0.10:53", "must be an IP address or a lowercase DNS name"),
        ("dns-service-address", "Dns", "must be an IP address or a lowercase DNS name"),
        ("cluster-domain", "a..b", "must be a lowercase DNS subdomain"),
    ],
)
def test_an_invalid_address_is_an_error(flag: str, written: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        read(f"--{flag}={written}")
    assert str(caught.value).startswith(f"--{flag}: ")


@pytest.mark.parametrize(("text", "size"), [("256Mi", 256 << 20), ("1000", 1000)])
def test_the_memory_for_objects_of_the_worker_is_an_amount_of_bytes(text: str, size: int) -> None:
    assert read(f"--worker-cache-limit={text}").worker_cache_bytes == size


@pytest.mark.parametrize("text", ["0", "-1", "lots"])
def test_memory_that_is_no_amount_of_bytes_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="must be an amount of bytes such as 256Mi"):
        read(f"--worker-cache-limit={text}")
