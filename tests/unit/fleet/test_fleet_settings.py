"""Flags of a hub and of a member."""

from __future__ import annotations

import re
from contextlib import AsyncExitStack
from datetime import timedelta
from pathlib import Path

import pytest

import kubeocean
from kubeocean.errors import ConfigError
from kubeocean.fleet.admission.configurations import WebhookSet
from kubeocean.fleet.admission.guard_rail import GuardRail
from kubeocean.fleet.admission.policies import PolicyConfig
from kubeocean.fleet.admission.settings import AdmissionSettings
from kubeocean.fleet.member import MemberProgram
from kubeocean.fleet.settings import HubSettings, MemberSettings
from kubeocean.runtime.flags import parse
from kubeocean.runtime.objects import Key

# Arguments that KubeFleet's charts pass
HUB_CHART = [
    "--leader-elect=true",
    "--enable-webhook=true",
    "--webhook-service-name=fleetwebhook",
    "--webhook-client-connection-type=service",
    "--enable-guard-rail=true",
    "--whitelisted-users=a,b",
    "--add_dir_header",
    "--force-delete-wait-time=15m",
    "--cluster-unhealthy-threshold=3m",
    "--enable-cluster-inventory-apis=true",
    "--enable-staged-update-run-apis=true",
    "--enable-eviction-apis=true",
    "--enable-resource-placement=true",
    "--enable-pprof=false",
    "--pprof-port=6065",
    "--max-concurrent-cluster-placement=100",
    "--concurrent-resource-change-syncs=20",
    "--max-fleet-size=200",
    "--hub-api-qps=250",
    "--hub-api-burst=1000",
    "--v=5",
    "--use-cert-manager=false",
    "--resource-snapshot-creation-minimum-interval=30s",
    "--resource-changes-collection-duration=15s",
    "--enable-workload=false",
    "--leader-lease-duration=60s",
    "--leader-renew-deadline=45s",
    "--leader-retry-period=5s",
    "--leader-election-namespace=fleet-system",
]
MEMBER_CHART = [
    "--leader-elect=true",
    "--tls-insecure=true",
    "--v=5",
    "-add_dir_header",
    "--use-ca-auth=false",
    "--enable-v1beta1-apis=true",
    "--property-provider=azure",
    "--region=eastus",
    "--hub-api-qps=50",
    "--hub-api-burst=500",
    "--member-api-qps=250",
    "--member-api-burst=1000",
    "--enable-pprof=false",
    "--pprof-port=6065",
    "--hub-pprof-port=6066",
    "--use-cost-properties-in-azure-provider=true",
    "--use-available-res-properties-in-azure-provider=true",
    "--enable-namespace-collection-in-property-provider=true",
    "--work-applier-requeue-rate-limiter-max-slow-backoff-delay-seconds=5",
    "--work-applier-requeue-rate-limiter-max-fast-backoff-delay-seconds=5",
    "--enable-work-applier-priority-queue=true",
    "--work-applier-priority-linear-equation-coeff-a=-3",
    "--work-applier-priority-linear-equation-coeff-b=100",
]


def hub(*words: str) -> HubSettings:
    settings = parse(HubSettings, words)
    assert settings is not None
    return settings


def member(*words: str) -> MemberSettings:
    settings = parse(MemberSettings, words)
    assert settings is not None
    return settings


def test_a_hub_takes_the_arguments_of_kubefleets_chart() -> None:
    settings = hub(*HUB_CHART)
    assert settings.cluster_unhealthy_threshold == timedelta(minutes=3)
    assert settings.force_delete_wait_s == 900
    assert (settings.lease_s, settings.renew_s, settings.retry_s) == (60, 45, 5)
    ignored = set(settings.without_effect())
    assert {"--add_dir_header", "--v"} <= ignored
    assert "--max-fleet-size" not in ignored
    webhooks = settings.admission("fleet-system").webhooks
    assert webhooks is not None
    assert webhooks.url == ""
    assert webhooks.names == (
        "fleetwebhook.fleet-system.svc",
        "fleetwebhook.fleet-system.svc.cluster.local",
    )
    assert webhooks.guard_rail == GuardRail(frozenset({"a", "b"}))
    assert webhooks.ban_workloads  # as in the chart


def test_admission_is_off_unless_asked_for() -> None:
    assert hub("--enable-guard-rail").admission("n") == AdmissionSettings()
    webhooks = hub("--enable-webhook").admission("n").webhooks
    assert webhooks is not None
    assert webhooks.url == "https://fleetwebhook.n.svc.cluster.local:9443"
    assert webhooks.webhooks == WebhookSet()
    bans = hub("--enable-webhook", "--enable-workload=false", "--enable-pdbs=false")
    both = bans.admission("n").webhooks
    assert both is not None
    assert both.webhooks == WebhookSet(ban_workloads=True, ban_budgets=True)
    runs = hub("--enable-webhook", "--enable-workload").admission("n").webhooks
    assert runs is not None
    assert not runs.ban_workloads


def test_the_url_of_webhooks_is_in_their_certificate() -> None:
    settings = hub("--enable-webhook", "--webhook-url=https://[fd00::1]:9443")
    webhooks = settings.admission("n").webhooks
    assert webhooks is not None
    assert webhooks.names[-1] == "fd00::1"
    for wrong in ("http://a", "https://a/b", "https://a?b", "a"):
        with pytest.raises(ConfigError, match="--webhook-url"):
            hub(f"--webhook-url={wrong}")
    with pytest.raises(ConfigError, match="--webhook-bind-address"):
        hub("--enable-webhook", "--webhook-bind-address=0")


def test_the_file_of_admission_policies_is_read_at_the_start(tmp_path: Path) -> None:
    manager = "--enable-admission-policy-manager"
    assert hub(manager).admission("n").policies == PolicyConfig()
    file = tmp_path / "policies.yaml"
    word = f"--admission-policy-manager-config={file}"
    with pytest.raises(ConfigError, match="cannot read the file"):
        hub(manager, word).admission("n")
    file.write_text("denyPodsAndReplicaSetsOutsideReservedNamespaces: {}\n")
    with pytest.raises(ConfigError, match="reservedNamespacePrefixes"):
        hub(manager, word).admission("n")


def test_a_member_takes_the_arguments_of_kubefleets_chart() -> None:
    settings = member(*MEMBER_CHART)
    assert (settings.property_provider, settings.region) == ("azure", "eastus")
    assert settings.collect_namespaces
    assert (settings.backoff.slow_limit_s, settings.backoff.fast_limit_s) == (5, 5)


def test_defaults() -> None:
    settings = hub()
    assert settings.status_extensions
    assert settings.cluster_unhealthy_threshold is None  # three heartbeats of each member
    assert settings.election_name == "136224848560.hub.fleet.azure.com"
    assert settings.leader_election_namespace == "fleet-system"
    assert list(settings.without_effect()) == []
    assert member().election_name == "136224848560.member.fleet.azure.com"
    assert list(member().without_effect()) == []


@pytest.mark.parametrize(
    "word",
    [
        "--cluster-unhealthy-threshold=29s",
        "--cluster-unhealthy-threshold=61m",
        "--force-delete-wait-time=1s",
        "--force-delete-wait-time=2h",
    ],
)
def test_times_out_of_range_are_refused(word: str) -> None:
    with pytest.raises(ConfigError, match="30s to 1h"):
        hub(word)


def test_allowed_and_skipped_apis_exclude_each_other() -> None:
    with pytest.raises(ConfigError, match="--allowed-propagating-apis"):
        hub("--allowed-propagating-apis=apps", "--skipped-propagating-apis=batch")


def test_a_secret_is_named_with_its_namespace() -> None:
    assert member("--token-secret=fleet-system/hub").token_secret == Key("fleet-system", "hub")
    for wrong in ("hub", "/hub", "fleet-system/", "Fleet/hub"):
        with pytest.raises(ConfigError, match="--token-secret"):
            member(f"--token-secret={wrong}")


def test_only_the_composition_knows_the_switch_of_extensions() -> None:
    package = Path(kubeocean.__file__).parent
    users = {
        str(path.relative_to(package))
        for path in package.rglob("*.py")
        if "status_extensions" in path.read_text("utf-8")
    }
    allowed = {"extensions.py", "hub.py", "member.py", "settings.py"}
    # A member without an agent is composed of a syncer's settings and parts.
    agentless = {"cli/_agentless.py", "syncer/settings.py"}
    assert users == {f"fleet/{name}" for name in allowed} | agentless


@pytest.mark.parametrize(
    ("words", "variable", "message"),
    [
        ((), "", "MEMBER_CLUSTER_NAME: must be set to the name of the member"),
        ((), "Ü", "MEMBER_CLUSTER_NAME: the namespace fleet-member-Ü cannot exist"),
        ((), "a/b", "MEMBER_CLUSTER_NAME: the namespace fleet-member-a/b cannot exist"),
        (("--member-name=a.b",), "b", "--member-name: the namespace fleet-member-a.b cannot exist"),
        ((), "x" * 51, "MEMBER_CLUSTER_NAME: the name has 51 characters and may have 50"),
    ],
)
def test_an_agent_does_not_start_with_a_name_that_no_member_can_have(
    words: tuple[str, ...], variable: str, message: str
) -> None:
    settings = parse(MemberSettings, words)
    assert settings is not None
    program = MemberProgram(settings, {"MEMBER_CLUSTER_NAME": variable}, AsyncExitStack())
    with pytest.raises(ConfigError, match=re.escape(message)):
        program.prepare()
