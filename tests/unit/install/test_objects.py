"""The objects of both sides."""

from __future__ import annotations

import base64
import re
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import yaml

from kubeocean.api.group import DEFAULT, TAPESTRY, Domain
from kubeocean.errors import ConfigError
from kubeocean.install.computing_objects import computing_objects
from kubeocean.install.computing_objects import withdrawn_objects as withdrawn_computing_objects
from kubeocean.install.credentials import due, kubeconfig, kubeconfig_secret, token_request
from kubeocean.install.management import (
    credential_secrets,
    management_objects,
    withdrawn_management_objects,
)
from kubeocean.install.object_parts import title
from kubeocean.install.roles import AddOn
from kubeocean.install.templates import proxier_deployment, proxier_files, syncer_files
from kubeocean.install.values import Size, Values, WorkerValues
from kubeocean.install.worker_admission import PodLimits, read_limits
from kubeocean.install.worker_objects import credential_secret, withdrawn_objects, worker_objects
from kubeocean.proxier.settings import ProxierSettings
from kubeocean.runtime.access import Access
from kubeocean.runtime.flags import parse
from kubeocean.runtime.objects import Json
from kubeocean.syncer.settings import SyncerSettings

NOW = datetime(2026, 1, 1, tzinfo=UTC)
EVERYTHING = [
    *computing_objects(Values(monitoring=True)),
    *worker_objects(WorkerValues(isolated=True)),
]


def the(kind: str, name: str, objects: list[Json]) -> Json:
    matching = [
        each for each in objects if (each["kind"], each["metadata"]["name"]) == (kind, name)
    ]
    assert len(matching) == 1
    return matching[0]


@pytest.mark.parametrize("side", [computing_objects(Values()), worker_objects(WorkerValues())])
def test_no_object_is_listed_twice(side: list[Json]) -> None:
    names = [title(each) for each in side]
    assert len(names) == len(set(names))


@pytest.mark.parametrize("body", EVERYTHING, ids=title)
def test_each_object_has_the_label_part_of(body: Json) -> None:
    assert body["metadata"]["labels"]["app.kubernetes.io/part-of"] == "kubeocean"


def test_crds_are_kept_when_a_helm_release_is_uninstalled() -> None:
    definitions = [each for each in EVERYTHING if each["kind"] == "CustomResourceDefinition"]
    assert len(definitions) == 2
    for each in definitions:
        assert each["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep"


def test_objects_are_created_after_those_that_they_need() -> None:
    kinds = [each["kind"] for each in computing_objects(Values())]
    order = ["CustomResourceDefinition", "Namespace", "ServiceAccount", "ClusterRole", "Deployment"]
    assert sorted(order, key=kinds.index) == order


def test_pods_are_unprivileged() -> None:
    manager = the("Deployment", "kubeocean-manager", EVERYTHING)
    pods = [
        manager["spec"]["template"]["spec"],
        yaml.safe_load(syncer_files(Values())["deployment.yaml"])["spec"]["template"]["spec"],
    ]
    for pod in pods:
        assert pod["securityContext"]["runAsUser"] == 65532
        for container in pod["containers"]:
            assert container["securityContext"]["readOnlyRootFilesystem"]
            assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
        assert not [each for each in pod.get("volumes", ()) if "hostPath" in each]


def test_one_value_sets_the_resources_of_all_programs() -> None:
    values = Values(size=Size.LARGE, replicas=3, image="mirror/kubeocean:1")
    manager = the("Deployment", "kubeocean-manager", computing_objects(values))
    syncer = yaml.safe_load(syncer_files(values)["deployment.yaml"])
    for deployment in (manager, syncer):
        container = deployment["spec"]["template"]["spec"]["containers"][0]
        assert container["resources"] == Size.LARGE.resources
        assert container["image"] == "mirror/kubeocean:1"
        assert deployment["spec"]["replicas"] == 3


def test_templates_use_the_variables_of_the_earlier_implementation() -> None:
    text = proxier_files(Values())["deployment.yaml"]
    assert "{{- if .TLSEnabled }}\n        - --tls-secret-name={{.TLSSecretName}}\n" in text
    service = yaml.safe_load(proxier_files(Values())["service.yaml"])
    assert service["metadata"]["name"] == "{{.ServiceName}}"
    assert set(syncer_files(Values())) == {
        "deployment.yaml",
        "poddisruptionbudget.yaml",
        "serviceaccount.yaml",
        "role.yaml",
        "rolebinding.yaml",
        "clusterrole.yaml",
        "clusterrolebinding.yaml",
        "accountPerBinding",
        "serviceAccountName",
        "syncerNamespace",
        "roleName",
        "roleBindingName",
    }


@pytest.mark.parametrize(
    ("files", "settings", "program"),
    [
        (syncer_files(Values(time_zone="UTC")), SyncerSettings, "syncer"),
        (proxier_files(Values()), ProxierSettings, "proxier"),
    ],
)
def test_programs_accept_the_flags_of_their_templates(
    files: dict[str, str], settings: type[SyncerSettings | ProxierSettings], program: str
) -> None:
    filled = files["deployment.yaml"]
    for directive in ("{{- if .TLSEnabled }}\n", "{{- end }}\n"):
        filled = filled.replace(directive, "")
    filled = re.sub(r"\{\{\.\w+\}\}", "berlin", filled)
    filled = re.sub(r"\{\{eq .+?\}\}", "true", filled)
    container = yaml.safe_load(filled)["spec"]["template"]["spec"]["containers"][0]
    assert container["args"][0] == program
    parsed = parse(settings, container["args"][1:])
    assert parsed is not None
    assert parsed.cluster_binding_name == "berlin"


def test_a_hanging_proxier_becomes_unready_within_five_seconds() -> None:
    pod = proxier_deployment(Values())["spec"]["template"]["spec"]
    probe = pod["containers"][0]["readinessProbe"]
    timeout_s = probe.get("timeoutSeconds", 1)
    assert probe["periodSeconds"] * probe["failureThreshold"] + timeout_s <= 5
    assert probe["failureThreshold"] > 1  # one bad answer moves no nodes


def kubeconfig_namespaces(values: Values) -> set[frozenset[str]]:
    """Return the flags with namespaces of kubeconfigs in the templates."""
    flags = set()
    for files, settings in (
        (syncer_files(values), SyncerSettings),
        (proxier_files(values), ProxierSettings),
    ):
        (flag,) = re.findall(r"- (--kubeconfig-namespaces=.*)", files["deployment.yaml"])
        parsed = parse(settings, ["--cluster-binding-name=b", flag.strip("'")])
        assert isinstance(parsed, SyncerSettings | ProxierSettings)
        flags.add(parsed.kubeconfig_namespaces)
    return flags


def test_programs_read_kubeconfigs_from_the_namespaces_of_the_installation() -> None:
    assert kubeconfig_namespaces(Values()) == {frozenset({"kubeocean-system"})}
    more = Values(domain=TAPESTRY, kubeconfig_namespaces=("team-a", "*"))
    assert kubeconfig_namespaces(more) == {frozenset({"tapestry-system", "team-a", "*"})}


def test_only_syncers_get_the_time_zone() -> None:
    assert "--time-zone" not in syncer_files(Values())["deployment.yaml"]
    text = syncer_files(Values(time_zone="Asia/Shanghai"))["deployment.yaml"]
    assert "- --time-zone=Asia/Shanghai\n" in text


def test_options_leave_out_network_policies_and_monitoring() -> None:
    kinds = {each["kind"] for each in computing_objects(Values(network_policies=False))}
    assert not kinds & {"NetworkPolicy", "ServiceMonitor", "PrometheusRule"}
    assert {"ServiceMonitor", "PrometheusRule"} <= {each["kind"] for each in EVERYTHING}


def test_another_domain_changes_all_names() -> None:
    objects = computing_objects(Values(domain=TAPESTRY))
    the("Deployment", "tapestry-manager", objects)
    mine = [each for each in objects if each["kind"] != "CustomResourceDefinition"]
    assert "kubeocean.io" not in str(mine)


def test_the_metrics_account_exists_only_with_its_add_on() -> None:
    team = WorkerValues(namespace="team")
    (role,) = [
        each
        for each in worker_objects(team)
        if each["kind"] == "ClusterRole" and "metrics" in str(each["rules"])
    ]
    assert role["metadata"]["name"] == "kubeocean-metrics-team"
    bound = the("ClusterRoleBinding", "kubeocean-metrics-team", worker_objects(team))
    account = {"kind": "ServiceAccount", "name": "kubeocean-metrics", "namespace": "team"}
    assert bound["subjects"] == [account]
    without = replace(team, add_ons=(AddOn.VOLUMES,))
    assert "kubeocean-metrics" not in str(worker_objects(without))


def test_objects_of_options_that_are_left_out_are_withdrawn() -> None:
    everything = WorkerValues(namespace="team", isolated=True)
    assert withdrawn_objects(everything) == []
    nothing = replace(everything, add_ons=(), quota={}, isolated=False, egress=False)
    assert list(map(title, withdrawn_objects(nothing))) == [
        "ServiceAccount team/kubeocean-metrics",
        "ClusterRole kubeocean-metrics-team",
        "ClusterRoleBinding kubeocean-metrics-team",
        "ResourceQuota team/kubeocean-syncer",
        "NetworkPolicy team/kubeocean-syncer",
        "NetworkPolicy team/kubeocean-syncer-egress",
        "ValidatingAdmissionPolicy kubeocean-syncer-team-tokens",
        "ValidatingAdmissionPolicyBinding kubeocean-syncer-team-tokens",
    ]


@pytest.mark.parametrize("files", [syncer_files(Values()), proxier_files(Values())])
def test_each_binding_has_disruption_budgets_of_its_own(files: dict[str, str]) -> None:
    """A syncer that is not ready, because its worker is down, protects no syncer of others."""
    budget = yaml.safe_load(files["poddisruptionbudget.yaml"].replace("{{", "<").replace("}}", ">"))
    assert budget["spec"]["selector"]["matchLabels"]["app.kubernetes.io/instance"] == (
        "<.ClusterBindingName>"
    )
    assert budget["spec"]["unhealthyPodEvictionPolicy"] == "AlwaysAllow"
    budgets = [each for each in EVERYTHING if each["kind"] == "PodDisruptionBudget"]
    assert [each["metadata"]["name"] for each in budgets] == ["kubeocean-manager"]
    withdrawn = list(map(title, withdrawn_computing_objects(Values())))
    assert "PodDisruptionBudget kubeocean-system/kubeocean-syncer" in withdrawn


def test_an_install_withdraws_objects_of_options_that_are_left_out() -> None:
    everything = Values(monitoring=True)
    withdrawn = withdrawn_computing_objects(Values(network_policies=False))
    kinds = [each["kind"] for each in withdrawn]
    assert kinds.count("NetworkPolicy") == 3
    assert {"ServiceMonitor", "PrometheusRule"} <= set(kinds)
    earlier = list(map(title, withdrawn_computing_objects(everything)))
    assert earlier == [
        f"{kind} kubeocean-system/kubeocean-{name}"
        for kinds, names in (
            (["Role", "RoleBinding"], ("syncer-sharding", "manager-unsharding")),
            (["PodDisruptionBudget"], ("syncer", "proxier")),
            (["Role", "RoleBinding"], ("syncer", "proxier")),
        )
        for name in names
        for kind in kinds
    ]


def test_limits_on_pods_are_read_back_from_their_admission_policy() -> None:
    batch = {"key": "pool", "operator": "In", "values": ["batch", "night"]}
    own = {"key": "metadata.name", "operator": "In", "values": ["n1"]}
    selector = {"nodeSelectorTerms": [{"matchExpressions": [batch]}, {"matchFields": [own]}]}
    values = WorkerValues(nodes=selector, priority_classes=("spot",), max_grace_s=7)
    policy = the("ValidatingAdmissionPolicy", "kubeocean-syncer-pods", worker_objects(values))
    terms = (("pool In batch,night",), ("field metadata.name In n1",))
    assert read_limits(policy) == PodLimits(terms, ("kubeocean-default", "spot"), 7)
    assert read_limits({"spec": {"variables": [{"name": "nodes", "expression": "a"}]}}) is None


# Credentials


def test_a_token_is_bound_to_its_secret() -> None:
    secret = credential_secret(WorkerValues(), "berlin", "0123456789")
    assert title(secret) == "Secret kubeocean-worker/kubeocean-berlin-01234567"
    spec = token_request(secret["metadata"]["name"], "uid-1")["spec"]
    assert spec["boundObjectRef"]["uid"] == "uid-1"
    assert spec["expirationSeconds"] == 365 * 24 * 3600


def test_a_kubeconfig_keeps_the_server_and_changes_the_user() -> None:
    access = Access(server="https://worker:6443", ca=b"ca", tls_server_name="w", username="admin")
    document = yaml.safe_load(kubeconfig(access, "token", namespace="ns"))
    cluster = document["clusters"][0]["cluster"]
    assert cluster == {
        "server": "https://worker:6443",
        "certificate-authority-data": base64.b64encode(b"ca").decode(),
        "tls-server-name": "w",
    }
    assert document["users"][0]["user"] == {"token": "token"}


def test_a_token_is_not_sent_over_plain_http() -> None:
    with pytest.raises(ConfigError, match=r"must be https.*http://worker"):
        kubeconfig(Access(server="http://worker"), "token", namespace="ns")


def test_the_secret_of_a_binding_has_its_kubeconfig_and_expiry() -> None:
    secret = kubeconfig_secret("berlin", "text", ends="2027-01-01T00:00:00Z", domain=DEFAULT)
    assert title(secret) == "Secret kubeocean-system/berlin-kubeconfig"
    assert base64.b64decode(secret["data"]["kubeconfig"]) == b"text"
    assert secret["metadata"]["annotations"] == {
        "kubeocean.io/token-expires": "2027-01-01T00:00:00Z"
    }


@pytest.mark.parametrize(("age_days", "is_due"), [(0, False), (59, False), (60, True), (100, True)])
def test_a_token_is_renewed_in_the_last_third_of_its_lifetime(age_days: int, is_due: bool) -> None:
    begins = NOW - timedelta(days=age_days)
    assert due(begins, begins + timedelta(days=90), NOW) is is_due
    assert due(None, None, NOW)


@pytest.mark.parametrize("admission", [True, False])
def test_the_right_to_renew_a_credential_needs_the_policy_that_bounds_it(admission: bool) -> None:
    objects = worker_objects(WorkerValues(admission=admission))
    (role,) = [each for each in objects if each["kind"] == "Role" and "pods" in str(each)]
    names = [each.get("resourceNames") for each in role["rules"]]
    assert (["kubeocean-syncer"] in names) is admission
    policies = [each for each in objects if each["metadata"]["name"] == "kubeocean-syncer-tokens"]
    assert bool(policies) is admission


# Scaling


def test_programs_are_scaled_only_on_request() -> None:
    assert "horizontalpodautoscaler.yaml" not in syncer_files(Values())
    assert "horizontalpodautoscaler.yaml" not in proxier_files(Values())


def test_an_autoscaler_has_the_name_and_at_least_the_replicas_of_its_deployment() -> None:
    values = Values(component_replicas={"proxier": 3}, max_replicas={"proxier": 7})
    files = proxier_files(values)
    scaler, deployment = (
        yaml.safe_load(files[file].replace("{{", "<").replace("}}", ">"))
        for file in ("horizontalpodautoscaler.yaml", "service.yaml")
    )
    assert scaler["spec"]["scaleTargetRef"]["name"] == scaler["metadata"]["name"]
    assert scaler["metadata"]["namespace"] == deployment["metadata"]["namespace"]
    assert (scaler["spec"]["minReplicas"], scaler["spec"]["maxReplicas"]) == (3, 7)
    assert "horizontalpodautoscaler.yaml" not in syncer_files(values)


def test_sharded_syncers_have_the_roles_of_the_shipped_manifest() -> None:
    manifest = Path(__file__).parents[3] / "deploy" / "syncer-sharding.yaml"
    shipped = {title(each): each for each in yaml.safe_load_all(manifest.read_text())}
    objects = {title(each): each for each in computing_objects(Values(shard_syncers=True))}
    for name, body in shipped.items():
        fields = ("rules", "roleRef", "subjects")
        assert [objects[name].get(each) for each in fields] == [body.get(each) for each in fields]
    assert set(objects) - {title(each) for each in EVERYTHING} >= set(shipped)
    assert set(shipped) <= {title(each) for each in withdrawn_computing_objects(Values())}
    (container,) = yaml.safe_load(syncer_files(Values(shard_syncers=True))["deployment.yaml"])[
        "spec"
    ]["template"]["spec"]["containers"]
    assert "--sharding" in container["args"]
    assert container["env"][-1]["name"] == "POD_TEMPLATE_HASH"


@pytest.mark.parametrize("domain", [DEFAULT, TAPESTRY])
def test_the_manager_binds_accounts_of_sharded_syncers_to_their_role(domain: Domain) -> None:
    values = Values(domain=domain, shard_syncers=True)
    bound = f"name: {domain.syncer}-sharding\n"
    assert bound in syncer_files(values)["rolebinding.yaml"]
    assert bound not in syncer_files(replace(values, shard_syncers=False))["rolebinding.yaml"]
    role = the("Role", f"{domain.manager}-unsharding", computing_objects(values))
    (rule,) = [each for each in role["rules"] if each["verbs"] == ["bind"]]
    assert rule["resourceNames"] == [f"{domain.syncer}-sharding"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_replicas": {"proxier": 1}}, "at least the number of replicas of each proxier"),
        ({"max_replicas": {"syncer": 4}}, "needs sharded syncers"),
        ({"max_replicas": {"manager": 4}}, "must be set for syncer or proxier only"),
        ({"target_cpu_percent": 0}, "must be between 1 and 500 percent"),
    ],
)
def test_an_autoscaler_that_could_not_work_is_refused(options: Json, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Values(**options)


# A management cluster


def test_a_management_cluster_has_the_programs_and_the_computing_cluster_the_rest() -> None:
    values = Values(management="uid-of-management", monitoring=True)
    computing = {title(each): each for each in computing_objects(values)}
    management = {title(each): each for each in management_objects(values)}
    alone = {title(each) for each in computing_objects(Values(monitoring=True))}
    assert alone == set(computing) | (set(management) & alone)
    kinds = {each["kind"] for each in computing.values()}
    assert not kinds & {"Deployment", "ConfigMap", "PodDisruptionBudget"}
    namespace = computing["Namespace kubeocean-system"]["metadata"]
    assert namespace["annotations"]["kubeocean.io/management-cluster-id"] == "uid-of-management"
    assert "CustomResourceDefinition" not in {each["kind"] for each in management.values()}
    reviews = {"tokenreviews", "subjectaccessreviews"}
    rules = [
        rule
        for each in management.values()
        if each["kind"] == "ClusterRole"
        for rule in each["rules"]
    ]
    assert {*(name for rule in rules for name in rule.get("resources", ()))} == reviews
    assert [rule["nonResourceURLs"] for rule in rules if "resources" not in rule] == [["/metrics"]]
    withdrawn = {title(each) for each in withdrawn_management_objects(values)}
    assert not withdrawn & set(management)


@pytest.mark.parametrize("files", [syncer_files, proxier_files])
def test_bindings_share_accounts_if_programs_run_in_a_management_cluster(
    files: Callable[[Values], dict[str, str]],
) -> None:
    own = {"accountPerBinding", "serviceaccount.yaml", "role.yaml", "rolebinding.yaml"}
    assert own <= set(files(Values()))
    assert not own & set(files(Values(management="uid")))


@pytest.mark.parametrize("component", ["manager", "syncer", "proxier"])
def test_programs_in_a_management_cluster_have_a_kubeconfig_of_the_computing_cluster(
    component: str,
) -> None:
    values = Values(management="uid")
    files = {"syncer": syncer_files, "proxier": proxier_files}
    if component in files:
        lines = files[component](values)["deployment.yaml"].splitlines()
        text = "\n".join(line for line in lines if not line.startswith("{{"))
        pod = yaml.safe_load(text)["spec"]["template"]["spec"]
    else:
        deployment = the("Deployment", "kubeocean-manager", management_objects(values))
        pod = deployment["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    flags = dict(each.split("=", 1) for each in container["args"] if "=" in each)
    mount = next(each for each in container["volumeMounts"] if each["name"] == "computing")
    assert flags["--kubeconfig"] == f"{mount['mountPath']}/kubeconfig"
    volume = next(each for each in pod["volumes"] if each["name"] == "computing")
    assert volume["secret"]["secretName"] == f"kubeocean-{component}-computing"
    assert flags["--management-kubeconfig"] == "in-cluster"
    names = [each["metadata"]["name"] for each in credential_secrets(values)]
    assert f"kubeocean-{component}-computing" in names
