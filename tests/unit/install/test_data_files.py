"""Placeholders in the data files of an installation, and the files themselves."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import yaml

import kubeocean.install
from kubeocean.api import group, naming
from kubeocean.api.fleet.clusters import MEMBER_CLUSTERS
from kubeocean.api.fleet.names import (
    CERT_MANAGER_CERTIFICATE,
    SYSTEM_NAMESPACE,
    WEBHOOK_CERTIFICATE_DIRECTORY,
    WEBHOOK_PORT,
)
from kubeocean.api.group import DEFAULT, TAPESTRY
from kubeocean.api.policies import RESOURCE_LEASING_POLICIES
from kubeocean.errors import InvariantError
from kubeocean.install.computing_objects import computing_admission, manager_deployment
from kubeocean.install.data_files import fill, read_object, read_objects
from kubeocean.install.fleet import (
    HEALTH_CHECKS,
    HUB_ACCOUNT,
    MEMBER_ACCOUNT,
    TOKEN_SECRET,
    HubConnection,
    WebhookValues,
    health_checks_map,
    hub_workload,
    member_cluster,
    member_deployment,
    token_secret,
)
from kubeocean.install.templates import proxier_deployment, proxier_files, syncer_deployment
from kubeocean.install.values import PodSecurity, Values, WorkerValues
from kubeocean.install.worker_admission import admission_objects
from kubeocean.runtime.objects import Json
from kubeocean.sharding.names import Names

DATA = Path(kubeocean.install.__file__).parent / "data"


def filled(document: object, **values: object) -> object:
    (result,) = fill([document], values, file="manager.yaml")
    return result


@pytest.mark.parametrize("value", ["a", 3, True, ["a", 1], {"cpu": {"a": [1]}}, [], {}, ""])
def test_a_placeholder_that_is_the_whole_scalar_is_replaced_by_any_value(value: object) -> None:
    assert filled({"field": "${value}"}, value=value) == {"field": value}


def test_a_placeholder_within_a_string_or_a_key_is_replaced_by_text() -> None:
    document = {"--port": "--listen=:${port}", "${name}-a": "${name}/${name}"}
    expected = {"--port": "--listen=:8080", "x-a": "x/x"}
    assert filled(document, port=8080, name="x") == expected


def test_a_placeholder_can_name_an_attribute() -> None:
    document = {"name": "${domain.manager}", "${domain.component}": "${domain.product}-a"}
    expected = {"name": "tapestry-manager", "tapestry.io/component": "tapestry-a"}
    assert filled(document, domain=TAPESTRY) == expected


def test_none_leaves_out_the_field_or_the_entry() -> None:
    document = {"a": "${none}", "b": ["x", "${none}", {"c": "${none}"}]}
    assert filled(document, none=None) == {"b": ["x", {}]}


def test_a_list_within_a_list_is_replaced_by_its_entries() -> None:
    document = {"args": ["first", "${more}", "last"], "nested": [["${more}"]]}
    expected = {"args": ["first", "a", "b", "last"], "nested": [["a", "b"]]}
    assert filled(document, more=("a", "b")) == expected


def test_two_dollars_write_the_characters_of_a_placeholder() -> None:
    assert filled(["$${source}", "a $${b} $c ${d}", "$${"], d=1) == [
        "${source}",
        "a ${b} $c 1",
        "${",
    ]


def test_values_are_copied_into_the_document() -> None:
    shared = {"cpu": ["1"]}
    first, second = fill(["${value}", "${value}"], {"value": shared}, file="a.yaml")
    first["cpu"].append("2")
    assert (second, shared) == ({"cpu": ["1"]}, {"cpu": ["1"]})


def test_an_entry_of_an_enumeration_becomes_its_text() -> None:
    result = filled("${level}", level=PodSecurity.BASELINE)
    assert type(result) is str and result == "baseline"


@pytest.mark.parametrize(
    ("document", "values", "message"),
    [
        ("${image}", {}, "manager.yaml: placeholder ${image} has no value"),
        ("a-${image}", {}, "manager.yaml: placeholder ${image} has no value"),
        ({"${image}": 1}, {}, "manager.yaml: placeholder ${image} has no value"),
        (
            {},
            {"image": "a"},
            "manager.yaml: has no placeholder ${image}, for which a value was given",
        ),
        ("${domain.x}", {"domain": TAPESTRY}, "manager.yaml: placeholder ${domain.x} has no value"),
        ("${image", {"image": "a"}, "manager.yaml: placeholder ${ has no value"),
        ("${}", {}, "manager.yaml: placeholder ${} has no value"),
        ("a-${image}", {"image": None}, "${image} must be a string or an integer, not None"),
        ("a-${image}", {"image": True}, "${image} must be a string or an integer, not True"),
        ("a-${image}", {"image": ["a"]}, "${image} must be a string or an integer, not ['a']"),
        ("${domain}", {"domain": TAPESTRY}, "placeholder ${domain} has a value of type Domain"),
    ],
)
def test_a_mistake_names_the_file_and_the_placeholder(
    document: object, values: dict[str, object], message: str
) -> None:
    with pytest.raises(InvariantError) as raised:
        filled(document, **values)
    assert message in str(raised.value)


# Prints the names of all files that are opened for the objects of installations.
READING = """
import sys
opened = set()
sys.addaudithook(lambda event, given: opened.add(str(given[0])) if event == "open" else None)
from kubeocean.install.fleet import member_cluster
from kubeocean.install.management import credential_secrets, management_objects
from kubeocean.install.manifests import render
from kubeocean.install.values import Values, WorkerValues
from kubeocean.install.worker_objects import credential_secret
render()
management_objects(Values(management="uid", near_control_plane=True))
credential_secrets(Values())
credential_secret(WorkerValues(), "berlin", "0123")
member_cluster("berlin", heartbeat_s=60)
print(*opened, sep="\\n")
"""


def test_each_data_file_is_read() -> None:
    done = subprocess.run(
        [sys.executable, "-c", READING], capture_output=True, text=True, timeout=60, check=True
    )
    opened = set(done.stdout.splitlines())
    files = {str(path) for path in DATA.rglob("*") if path.is_file()}
    assert files and files - opened == set()


# Settings that several files repeat, and constants of the programs


def workloads() -> dict[str, Json]:
    """Return the Deployments of all programs, by the name of the program."""
    return {
        "manager": manager_deployment(Values()),
        "syncer": syncer_deployment(Values()),
        "proxier": proxier_deployment(Values()),
        "hub": hub_workload(Values())[-1],
        "member": member_deployment(Values(), HubConnection("berlin", "https://hub.example")),
    }


def test_the_pods_of_all_programs_have_the_same_security_settings() -> None:
    pods = [each["spec"]["template"]["spec"] for each in workloads().values()]
    job = read_object("charts/kubeocean/uninstall_check.yaml", values=Values(), domain=DEFAULT)
    pods.append(job["spec"]["template"]["spec"])
    for pod in pods:
        (container,) = pod["containers"]
        assert pod["securityContext"] == pods[0]["securityContext"]
        assert pod["affinity"] == pods[0]["affinity"]
        assert container["securityContext"] == pods[0]["containers"][0]["securityContext"]
        assert container["env"][:3] == pods[0]["containers"][0]["env"]
    assert pods[0]["securityContext"]["runAsNonRoot"] is True
    assert pods[0]["containers"][0]["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }


@pytest.mark.parametrize("program", ["manager", "syncer", "proxier", "hub", "member"])
def test_a_program_listens_on_the_ports_of_its_pod(program: str) -> None:
    (container,) = workloads()[program]["spec"]["template"]["spec"]["containers"]
    ports = {each["name"]: each["containerPort"] for each in container["ports"]}
    flags = dict(each.split("=", 1) for each in container["args"] if "=" in each)
    assert flags["--metrics-bind-address"] == f":{ports['metrics']}"
    assert flags["--health-probe-bind-address"] == f":{ports['health']}"
    assert (ports["metrics"], ports["health"]) == (group.METRICS_PORT, group.HEALTH_PORT)
    for name in ("livenessProbe", "readinessProbe"):
        assert container[name]["httpGet"]["port"] == "health"


def test_proxiers_and_their_network_policy_have_the_ports_of_virtual_nodes() -> None:
    (container,) = workloads()["proxier"]["spec"]["template"]["spec"]["containers"]
    ports = {each["name"]: each["containerPort"] for each in container["ports"]}
    assert ports["kubelet"] == group.KUBELET_PORT
    assert ports["vnode-metrics"] == group.VNODE_METRICS_PORT
    assert f"--listen-port={group.KUBELET_PORT}" in container["args"]
    service = yaml.safe_load(proxier_files(Values())["service.yaml"])
    assert {each["port"] for each in service["spec"]["ports"]} == {
        group.KUBELET_PORT,
        group.VNODE_METRICS_PORT,
    }
    policies = read_objects("computing/network_policies.yaml", domain=DEFAULT)
    assert policies[1]["spec"]["ingress"][0]["ports"][0]["port"] == group.METRICS_PORT
    kubelet, metrics, nodes = policies[2]["spec"]["ingress"][0]["ports"]
    assert (kubelet["port"], metrics["port"]) == (group.KUBELET_PORT, group.VNODE_METRICS_PORT)
    assert nodes["port"] == group.PROXIER_PORT_FIRST
    assert nodes["endPort"] == group.PROXIER_PORT_LAST


def test_the_files_of_a_fleet_have_the_names_that_its_programs_use() -> None:
    budget, service, _, certificate, deployment = hub_workload(
        Values(), WebhookValues(certificate_secret="s")
    )
    for body in (budget, service, certificate, deployment, token_secret("t")):
        assert body["metadata"]["namespace"] == SYSTEM_NAMESPACE
    assert certificate["metadata"]["name"] == CERT_MANAGER_CERTIFICATE
    assert service["spec"]["ports"][0]["port"] == WEBHOOK_PORT
    pod = deployment["spec"]["template"]["spec"]
    assert (deployment["metadata"]["name"], pod["serviceAccountName"]) == (HUB_ACCOUNT, HUB_ACCOUNT)
    (mount,) = pod["containers"][0]["volumeMounts"]
    assert mount["mountPath"] == WEBHOOK_CERTIFICATE_DIRECTORY
    member = workloads()["member"]
    pod = member["spec"]["template"]["spec"]
    assert (member["metadata"]["name"], pod["serviceAccountName"]) == (
        MEMBER_ACCOUNT,
        MEMBER_ACCOUNT,
    )
    secret, checks = token_secret("t"), health_checks_map("")
    assert secret["metadata"]["name"] == TOKEN_SECRET
    assert checks["metadata"]["name"] == HEALTH_CHECKS
    assert f"--token-secret={SYSTEM_NAMESPACE}/{TOKEN_SECRET}" in pod["containers"][0]["args"]
    assert member_cluster("berlin", heartbeat_s=60)["apiVersion"] == MEMBER_CLUSTERS.api_version


def test_admission_policies_name_the_kinds_and_prefixes_that_the_syncer_uses() -> None:
    policies = {
        each["metadata"]["name"]: each["spec"]
        for each in (*admission_objects(WorkerValues()), *computing_admission(Values()))
        if each["kind"] == "ValidatingAdmissionPolicy"
    }
    (rule,) = policies["kubeocean-syncer-policies"]["matchConstraints"]["resourceRules"]
    assert rule["apiGroups"] == [group.GROUP]
    assert rule["resources"] == [RESOURCE_LEASING_POLICIES.plural]
    nodes = policies["kubeocean-syncer-pod-tokens"]["variables"]
    expression = next(each["expression"] for each in nodes if each["name"] == "prefix")
    shortest = len(naming.virtual_node_prefix("a" * 60)) - 1  # of a cut prefix that ends in a dot
    whole = f"('{naming.VNODE_PREFIX}' + variables.id + '-')"
    assert expression.startswith(f"{whole}.size() > {shortest} ? {whole}.substring(0, {shortest})")
    rules = policies["kubeocean-syncer-specs"]["matchConstraints"]["resourceRules"]
    assert rules[-1]["apiGroups"] == [group.GROUP]
    sources = policies["kubeocean-syncer-sources"]["variables"]
    label = Names(DEFAULT.syncer, DEFAULT.sharding).role_label
    assert f"'{label}' in oldObject.metadata.labels" in sources[0]["expression"]


def test_the_priority_class_has_the_value_of_the_copies_of_other_classes() -> None:
    body = read_object("worker/priority_class.yaml", domain=DEFAULT)
    assert body["value"] == group.PRIORITY_CLASS_VALUE
