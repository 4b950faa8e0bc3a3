"""Settings of a hub and of a member: the flags of KubeFleet's agents, and new ones.

KubeFleet's flags for parts that Kubeocean does not have are accepted without effect, so that
KubeFleet's manifests work unchanged; `without_effect` yields those flags whose value is not the
default.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Final, TypeVar

from kubeocean.api.fleet.names import (
    SYSTEM_NAMESPACE,
    WEBHOOK_CERTIFICATE_DIRECTORY,
    WEBHOOK_PORT,
    WEBHOOK_SERVICE,
)
from kubeocean.errors import ConfigError
from kubeocean.fleet.admission.guard_rail import GuardRail
from kubeocean.fleet.admission.policies import PolicyConfig, read_policy_config
from kubeocean.fleet.admission.settings import AdmissionSettings, WebhookSettings
from kubeocean.fleet.applier.health_checks import GroupKind, read_health_checks
from kubeocean.fleet.applier.records import Backoff
from kubeocean.process import flags
from kubeocean.process.settings import ReplicaSettings
from kubeocean.runtime.files import FileSet
from kubeocean.runtime.flags import (
    BindAddress,
    Reader,
    address,
    boolean,
    duration,
    flag,
    integer,
    number,
    one_of,
    optional_boolean,
    text,
)
from kubeocean.runtime.objects import Key

__all__ = ["FleetSettings", "HubSettings", "MemberSettings"]

# Leases of KubeFleet's agents: while one of them holds the Lease, no Kubeocean process leads
HUB_LEASE: Final = "136224848560.hub.fleet.azure.com"
MEMBER_LEASE: Final = "136224848560.member.fleet.azure.com"
_MEMBER_LEASE_NAMESPACE: Final = "kube-system"
_NO_EFFECT: Final = "Accepted for compatibility with KubeFleet; has no effect."
_SHORTEST_S: Final = 30.0
_LONGEST_S: Final = 3600.0

T = TypeVar("T")

_EXTENSIONS: Final = (
    "Add Kubeocean's own conditions and properties to statuses; without them every status has"
    " KubeFleet's entries and no others."
)


def _optional_duration(written: str, flag: str) -> timedelta | None:
    """Parse a duration; None if empty, for a computed default."""
    return timedelta(seconds=duration(written, flag)) if written else None


def _https_url(written: str, flag: str) -> str:
    """Check the https URL of a server; empty stands for a computed default."""
    if written and not re.fullmatch(r"https://[A-Za-z0-9.:\[\]-]+/?", written):
        raise ConfigError("must be https://HOST:PORT", source=flag, value=written)
    return written


def _secret(written: str, flag: str) -> Key | None:
    """Parse NAMESPACE/NAME of a Secret; None if empty."""
    if not written:
        return None
    key = Key.parse(written)
    if not key.namespace or not key.name:
        raise ConfigError("must be NAMESPACE/NAME", source=flag, value=written)
    flags.name(key.namespace, flag)
    flags.name(key.name, flag)
    return key


def _unused(name: str, read: Reader[T], default: str) -> T:
    return flag(name, read, default, _NO_EFFECT)


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetSettings(ReplicaSettings):
    """Settings that a hub and a member share."""

    sharding: bool = field(default=False, init=False)
    allow_exec_plugins: bool = flag(
        "allow-exec-plugins",
        boolean,
        "false",
        "Run the credential plugins that the kubeconfigs of this process name.",
    )
    status_extensions: bool = flag("status-extensions", boolean, "true", _EXTENSIONS)
    lease_s: float = flag(
        "leader-lease-duration",
        duration,
        "15s",
        "Time after which other replicas replace a leader that does not renew its Lease.",
    )
    renew_s: float = flag(
        "leader-renew-deadline",
        duration,
        "10s",
        "Time after which a leader that cannot renew its Lease stops.",
    )
    retry_s: float = flag(
        "leader-retry-period",
        duration,
        "2s",
        "Time between two attempts to acquire or renew the Lease.",
    )
    enable_pprof: bool = _unused("enable-pprof", boolean, "false")
    pprof_port: int = _unused("pprof-port", integer, "6065")
    verbosity: int = _unused("v", integer, "0")
    add_directory_header: bool = _unused("add_dir_header", boolean, "false")

    def without_effect(self) -> Iterator[str]:
        """Yield the flags without effect whose value is not their default."""
        for each in dataclasses.fields(self):
            declared = each.metadata.get("flag")
            if declared is None or declared.meaning != _NO_EFFECT:
                continue
            if getattr(self, each.name) != each.default:
                yield f"--{declared.name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class HubSettings(FleetSettings):
    """Settings of a hub process, parsed from its flags."""

    kubeconfig: str = flag(
        "kubeconfig",
        text,
        "",
        "Kubeconfig of the hub (default: $KUBECONFIG, then the pod's account).",
    )
    leader_election_id: str = flag(
        "leader-election-id",
        flags.name,
        HUB_LEASE,
        "Name of the Lease with which replicas elect a leader.",
    )
    leader_election_namespace: str = flag(
        "leader-election-namespace",
        flags.name,
        SYSTEM_NAMESPACE,
        "Namespace of the leader election Lease.",
    )
    hub_api_qps: float = flag(
        "hub-api-qps", number, "250", "Requests per second to the hub; 0 means no limit."
    )
    hub_api_burst: int = flag(
        "hub-api-burst",
        integer,
        "1000",
        "Requests to the hub that may exceed --hub-api-qps in a burst.",
    )
    cluster_unhealthy_threshold: timedelta | None = flag(
        "cluster-unhealthy-threshold",
        _optional_duration,
        "",
        "Age of a member's last heartbeat at which it counts as lost, 30s to 1h"
        " (default: three times the member's heartbeat period).",
    )
    force_delete_wait_s: float = flag(
        "force-delete-wait-time",
        duration,
        "15m",
        "Time after which a member that does not leave is removed, 30s to 1h.",
    )
    networking_agents_enabled: bool = flag(
        "networking-agents-enabled",
        boolean,
        "false",
        "Wait for the two networking agents when a member joins or leaves.",
    )
    enable_cluster_inventory_apis: bool = flag(
        "enable-cluster-inventory-apis",
        boolean,
        "true",
        "Keep a ClusterProfile for each member that has joined.",
    )
    agentless: bool = flag(
        "agentless",
        boolean,
        "false",
        "Make the worker of every ClusterBinding a member, served by its syncer; without this flag"
        " only bindings with the annotation kubeocean.io/fleet=member.",
    )
    enable_resource_placement: bool = _unused("enable-resource-placement", boolean, "true")
    enable_eviction_apis: bool = _unused("enable-eviction-apis", boolean, "true")
    enable_staged_update_run_apis: bool = _unused("enable-staged-update-run-apis", boolean, "true")
    skipped_propagating_apis: str = flag(
        "skipped-propagating-apis",
        text,
        "",
        "APIs that placements do not select: GROUP, GROUP/VERSION or GROUP/VERSION/KIND,KIND,"
        " separated by semicolons.",
    )
    allowed_propagating_apis: str = flag(
        "allowed-propagating-apis",
        text,
        "",
        "The only APIs that placements select, in the form of --skipped-propagating-apis.",
    )
    skipped_propagating_namespaces: str = flag(
        "skipped-propagating-namespaces",
        text,
        "",
        "Namespaces that placements do not select, separated by semicolons or commas.",
    )
    snapshot_minimum_interval_s: float = flag(
        "resource-snapshot-creation-minimum-interval",
        duration,
        "30s",
        "Least time between two resource snapshots of a placement.",
    )
    changes_collection_s: float = flag(
        "resource-changes-collection-duration",
        duration,
        "15s",
        "Time for which changes of selected objects are collected into one snapshot.",
    )
    enable_workload: bool | None = flag(
        "enable-workload",
        optional_boolean,
        "",
        "The hub runs workloads: PersistentVolumeClaims are not placed on members. An explicit"
        " false also bans new Pods and ReplicaSets outside reserved namespaces, with"
        " --enable-webhook.",
    )
    max_fleet_size: int = flag(
        "max-fleet-size", integer, "100", "Expected number of members; not a limit."
    )
    max_concurrent_cluster_placement: int = _unused(
        "max-concurrent-cluster-placement", integer, "100"
    )
    concurrent_resource_change_syncs: int = _unused(
        "concurrent-resource-change-syncs", integer, "20"
    )
    resync_period_s: float = _unused("resync-period", duration, "6h")
    work_pending_grace_period_s: float = _unused("work-pending-grace-period", duration, "15s")
    rate_limiter_base_delay_s: float = _unused("rate-limiter-base-delay", duration, "5ms")
    rate_limiter_max_delay_s: float = _unused("rate-limiter-max-delay", duration, "60s")
    rate_limiter_qps: int = _unused("rate-limiter-qps", integer, "10")
    rate_limiter_bucket_size: int = _unused("rate-limiter-bucket-size", integer, "100")
    leader_election_qps: float = _unused("leader-election-qps", number, "250")
    leader_election_burst: int = _unused("leader-election-burst", integer, "1000")
    enable_v1beta1_apis: bool = _unused("enable-v1beta1-apis", boolean, "true")
    enable_webhook: bool = flag(
        "enable-webhook",
        boolean,
        "false",
        "Serve admission webhooks, and register them at the API server.",
    )
    webhook_bind_address: BindAddress | None = flag(
        "webhook-bind-address", address, f":{WEBHOOK_PORT}", "Address of the webhook server."
    )
    webhook_service_name: str = flag(
        "webhook-service-name",
        flags.name,
        WEBHOOK_SERVICE,
        "Name of the Service of the webhook server.",
    )
    webhook_client_connection_type: str = flag(
        "webhook-client-connection-type",
        one_of("url", "service"),
        "url",
        "Whether the API server reaches webhooks by a URL or by the Service.",
    )
    webhook_url: str = flag(
        "webhook-url",
        _https_url,
        "",
        "URL by which the API server reaches the webhook server, with the connection type url"
        " (default: https://SERVICE.NAMESPACE.svc.cluster.local:PORT).",
    )
    enable_guard_rail: bool = flag(
        "enable-guard-rail",
        boolean,
        "false",
        "Deny changes of the fleet's own objects to users without a role in it, with"
        " --enable-webhook.",
    )
    whitelisted_users: str = flag(
        "whitelisted-users",
        text,
        "",
        "Users, separated by commas, who count as administrators for the guard rail.",
    )
    deny_modify_member_cluster_labels: bool = flag(
        "deny-modify-member-cluster-labels",
        boolean,
        "false",
        "The guard rail also denies changes of the labels of fleet MemberClusters.",
    )
    enable_pdbs: bool = flag(
        "enable-pdbs",
        boolean,
        "true",
        "Allow PodDisruptionBudgets outside reserved namespaces; false bans new ones, with"
        " --enable-webhook.",
    )
    use_cert_manager: bool = flag(
        "use-cert-manager",
        boolean,
        "false",
        "Leave the certificates of webhooks to cert-manager.",
    )
    webhook_certificate_directory: str = flag(
        "webhook-certificate-directory",
        text,
        WEBHOOK_CERTIFICATE_DIRECTORY,
        "Directory with tls.crt and tls.key, with --use-cert-manager.",
    )
    enable_admission_policy_manager: bool = flag(
        "enable-admission-policy-manager",
        boolean,
        "false",
        "Maintain ValidatingAdmissionPolicies that protect reserved namespaces.",
    )
    admission_policy_manager_config: str = flag(
        "admission-policy-manager-config",
        text,
        "",
        "YAML file that names the policies (default: protect service accounts of the namespaces"
        " fleet-* and kube-*).",
    )

    def __post_init__(self) -> None:
        ReplicaSettings.__post_init__(self)  # with slots, super() refers to another class
        _check_range("--force-delete-wait-time", self.force_delete_wait_s)
        if self.cluster_unhealthy_threshold is not None:
            seconds = self.cluster_unhealthy_threshold.total_seconds()
            _check_range("--cluster-unhealthy-threshold", seconds)
        if self.skipped_propagating_apis and self.allowed_propagating_apis:
            message = "cannot be used together with --allowed-propagating-apis"
            raise ConfigError(message, source="--skipped-propagating-apis")
        if self.enable_webhook and self.webhook_bind_address is None:
            raise ConfigError("is required with --enable-webhook", source="--webhook-bind-address")

    @property
    def election_name(self) -> str:
        """Name of the Lease with which replicas elect a leader."""
        return self.leader_election_id or HUB_LEASE

    def admission(self, namespace: str) -> AdmissionSettings:
        """Return the settings of webhooks and admission policies for a hub in `namespace`.

        :raises ConfigError: the file of admission policies is invalid.
        """
        return AdmissionSettings(self._webhooks(namespace), self._policies())

    def _webhooks(self, namespace: str) -> WebhookSettings | None:
        listens = self.webhook_bind_address
        if not self.enable_webhook or listens is None:
            return None
        service = self.webhook_service_name
        url = ""
        if self.webhook_client_connection_type == "url":
            default = f"https://{service}.{namespace}.svc.cluster.local:{listens.port}"
            url = self.webhook_url or default
        users = frozenset(
            user.strip() for user in self.whitelisted_users.split(",") if user.strip()
        )
        guard_rail = GuardRail(users, self.deny_modify_member_cluster_labels)
        return WebhookSettings(
            listens,
            service,
            namespace,
            url,
            guard_rail if self.enable_guard_rail else None,
            ban_workloads=self.enable_workload is False,
            ban_budgets=not self.enable_pdbs,
            certificate_directory=self.webhook_certificate_directory
            if self.use_cert_manager
            else "",
            networking=self.networking_agents_enabled,
        )

    def _policies(self) -> PolicyConfig | None:
        if not self.enable_admission_policy_manager:
            return None
        path = self.admission_policy_manager_config
        if not path:
            return PolicyConfig()
        return read_policy_config(_content(path, "--admission-policy-manager-config"), path)

    @property
    def ring_name(self) -> str:
        """Name of the ring of replicas that share the work."""
        return "fleet-hub"


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberSettings(FleetSettings):
    """Settings of a member agent process, parsed from its flags."""

    kubeconfig: str = flag(
        "kubeconfig",
        text,
        "",
        "Kubeconfig of the member's own cluster (default: $KUBECONFIG, then the pod's account).",
    )
    leader_election_id: str = flag(
        "leader-election-id",
        flags.name,
        MEMBER_LEASE,
        "Name of the Lease, in the member, with which replicas elect a leader.",
    )
    leader_election_namespace: str = flag(
        "leader-election-namespace",
        flags.name,
        _MEMBER_LEASE_NAMESPACE,
        "Namespace of the leader election Lease, in the member.",
    )
    metrics_bind_address: BindAddress | None = flag(
        "metrics-bind-address", address, ":8090", "Address of /metrics; 0 disables it."
    )
    health_probe_bind_address: BindAddress | None = flag(
        "health-probe-bind-address",
        address,
        ":8091",
        "Address of /healthz and /readyz; 0 disables them.",
    )
    member_name: str = flag(
        "member-name", flags.name, "", "Name of the member (default: $MEMBER_CLUSTER_NAME)."
    )
    hub_kubeconfig: str = flag(
        "hub-kubeconfig",
        text,
        "",
        "Kubeconfig of the hub; replaces HUB_SERVER_URL and all other variables.",
    )
    token_secret: Key | None = flag(
        "token-secret",
        _secret,
        "",
        "NAMESPACE/NAME of a Secret in the member that holds the token for the hub.",
    )
    use_ca_auth: bool = flag(
        "use-ca-auth",
        boolean,
        "false",
        "Authenticate at the hub with the client certificate of $IDENTITY_CERT.",
    )
    tls_insecure: bool = flag(
        "tls-insecure", boolean, "false", "Do not verify the hub's certificate. For tests only."
    )
    hub_api_qps: float = flag(
        "hub-api-qps", number, "50", "Requests per second to the hub; 0 means no limit."
    )
    hub_api_burst: int = flag(
        "hub-api-burst",
        integer,
        "500",
        "Requests to the hub that may exceed --hub-api-qps in a burst.",
    )
    member_api_qps: float = flag(
        "member-api-qps", number, "250", "Requests per second to the member; 0 means no limit."
    )
    member_api_burst: int = flag(
        "member-api-burst",
        integer,
        "1000",
        "Requests to the member that may exceed --member-api-qps in a burst.",
    )
    property_provider: str = flag(
        "property-provider",
        text,
        "none",
        "Source of the member's properties: none for nodes and pods, azure for sizes and costs"
        " as well, or package.module:Class of your own.",
    )
    region: str = flag(
        "region",
        text,
        "",
        "Azure region by whose prices the member's costs are computed (default: that of its first"
        " node with a region label; only with --property-provider=azure).",
    )
    use_cost_properties: bool = flag(
        "use-cost-properties-in-azure-provider",
        boolean,
        "true",
        "Report costs (only with --property-provider=azure).",
    )
    use_available_properties: bool = flag(
        "use-available-res-properties-in-azure-provider",
        boolean,
        "true",
        "Report resources that no pod has requested (only with --property-provider=azure).",
    )
    collect_namespaces: bool = flag(
        "enable-namespace-collection-in-property-provider",
        boolean,
        "false",
        "Report the namespaces of the member, which lets placements require them (only with"
        " --property-provider=azure).",
    )
    price_list: str = flag(
        "price-list",
        text,
        "",
        "JSON file with prices, instead of the built-in ones (only with"
        " --property-provider=azure).",
    )
    health_checks: str = flag(
        "health-checks",
        text,
        "",
        "YAML file that maps KIND.GROUP to a CEL expression, such as Database.example.com:"
        " self.status.phase == 'Ready'; an object of the kind is available when it is true. The"
        " annotation kubeocean.io/available-when of an object replaces it for that object.",
    )
    deletion_wait_minutes: int = flag(
        "deletion-wait-time",
        integer,
        "5",
        "Minutes after which objects of a deleted Work no longer block its deletion.",
    )
    attempts_with_fixed_delay: int = flag(
        "work-applier-requeue-rate-limiter-attempts-with-fixed-delay",
        integer,
        "1",
        "Number of delays between passes over a Work that have the fixed length, before the"
        " backoff begins.",
    )
    fixed_delay_s: float = flag(
        "work-applier-requeue-rate-limiter-fixed-delay-seconds",
        number,
        "5",
        "Fixed delay, in seconds, between the first passes over a Work.",
    )
    slow_backoff_base: float = flag(
        "work-applier-requeue-rate-limiter-exponential-base-for-slow-backoff",
        number,
        "1.2",
        "Factor by which the delay between passes over a Work grows in the slow backoff, which"
        " follows the passes with the fixed delay.",
    )
    initial_slow_backoff_s: float = flag(
        "work-applier-requeue-rate-limiter-initial-slow-backoff-delay-seconds",
        number,
        "2",
        "First delay of the slow backoff, in seconds.",
    )
    max_slow_backoff_s: float = flag(
        "work-applier-requeue-rate-limiter-max-slow-backoff-delay-seconds",
        number,
        "15",
        "Longest delay of the slow backoff, in seconds; the fast backoff follows.",
    )
    fast_backoff_base: float = flag(
        "work-applier-requeue-rate-limiter-exponential-base-for-fast-backoff",
        number,
        "1.5",
        "Factor by which the delay grows in the fast backoff.",
    )
    max_fast_backoff_s: float = flag(
        "work-applier-requeue-rate-limiter-max-fast-backoff-delay-seconds",
        number,
        "900",
        "Longest delay of the fast backoff, in seconds.",
    )
    skip_to_fast_backoff: bool = flag(
        "work-applier-requeue-rate-limiter-skip-to-fast-backoff-for-available-or-diff-reported"
        "-work-objs",
        boolean,
        "true",
        "Skip the slow backoff for Works whose objects are available, or whose differences are"
        " reported.",
    )
    enable_v1alpha1_apis: bool = _unused("enable-v1alpha1-apis", boolean, "false")
    enable_v1beta1_apis: bool = _unused("enable-v1beta1-apis", boolean, "true")
    cloud_config: str = _unused("cloud-config", text, "/etc/kubernetes/provider/config.json")
    hub_pprof_port: int = _unused("hub-pprof-port", integer, "6066")
    hub_metrics_bind_address: str = _unused("hub-metrics-bind-address", text, ":8080")
    hub_health_probe_bind_address: str = _unused("hub-health-probe-bind-address", text, ":8081")
    watch_with_priority_queue: bool = _unused(
        "enable-watch-work-with-priority-queue", boolean, "false"
    )
    watch_reconcile_age: int = _unused("watch-work-reconcile-age", integer, "60")
    applier_priority_queue: bool = _unused("enable-work-applier-priority-queue", boolean, "false")
    priority_coefficient_a: int = _unused(
        "work-applier-priority-linear-equation-coeff-a", integer, "-3"
    )
    priority_coefficient_b: int = _unused(
        "work-applier-priority-linear-equation-coeff-b", integer, "100"
    )

    def __post_init__(self) -> None:
        ReplicaSettings.__post_init__(self)
        if self.hub_kubeconfig and (self.use_ca_auth or self.token_secret is not None):
            message = "cannot be used together with --use-ca-auth or --token-secret"
            raise ConfigError(message, source="--hub-kubeconfig", value=self.hub_kubeconfig)

    @property
    def election_name(self) -> str:
        """Name of the Lease with which replicas elect a leader."""
        return self.leader_election_id or MEMBER_LEASE

    @property
    def ring_name(self) -> str:
        """Name of the ring of replicas that share the work."""
        return "fleet-member"

    def read_health_checks(self) -> dict[GroupKind, str]:
        """Read the expressions of kinds from the file of `--health-checks`; empty without one.

        :raises ConfigError: the file cannot be read, or is invalid.
        """
        path = self.health_checks
        return read_health_checks(_content(path, "--health-checks"), path) if path else {}

    @property
    def backoff(self) -> Backoff:
        """Delays between passes over a Work that are scheduled without an event."""
        return Backoff(
            fixed_attempts=self.attempts_with_fixed_delay,
            fixed_delay_s=self.fixed_delay_s,
            slow_start_s=self.initial_slow_backoff_s,
            slow_factor=self.slow_backoff_base,
            slow_limit_s=self.max_slow_backoff_s,
            fast_factor=self.fast_backoff_base,
            fast_limit_s=self.max_fast_backoff_s,
            skips_to_fast=self.skip_to_fast_backoff,
        )


def _content(path: str, flag_name: str) -> bytes:
    try:
        return FileSet().read(Path(path))
    except OSError as error:
        raise ConfigError(f"cannot read the file: {error}", source=flag_name, value=path) from error


def _check_range(flag_name: str, seconds: float) -> None:
    if not _SHORTEST_S <= seconds <= _LONGEST_S:
        raise ConfigError("must be 30s to 1h", source=flag_name, value=f"{seconds:g}s")
