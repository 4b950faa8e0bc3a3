"""Objects of a fleet's installation."""

from __future__ import annotations

from base64 import b64decode, b64encode
from pathlib import Path

import msgspec
import pytest

from kubeocean.api.fleet.clusters import MemberCluster
from kubeocean.api.fleet.names import SYSTEM_NAMESPACE
from kubeocean.api.group import DEFAULT
from kubeocean.fleet.settings import HubSettings, MemberSettings
from kubeocean.install.fleet import (
    HubConnection,
    MemberOptions,
    WebhookValues,
    agentless_objects,
    agentless_rights,
    agentless_roles,
    applier_permissions,
    hub_objects,
    hub_rights,
    hub_workload,
    join_problem,
    member_cluster,
    member_deployment,
    member_identity,
    member_objects,
    member_rights,
    token_secret,
)
from kubeocean.install.object_parts import title
from kubeocean.install.permissions import Rights
from kubeocean.install.roles import ALL_ADD_ONS, worker_rights
from kubeocean.install.values import IMAGE, Values, WorkerValues
from kubeocean.runtime.access import Access
from kubeocean.runtime.flags import parse
from kubeocean.runtime.objects import Json, OwnerReference

ACCESS = Access("https://hub.example", ca=b"PEM")


def program(deployment: Json) -> Json:
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    return dict(container)


def environment(deployment: Json) -> dict[str, str]:
    return {each["name"]: each.get("value", "") for each in program(deployment)["env"]}


def test_programs_understand_their_arguments() -> None:
    hub = program(hub_workload(Values())[-1])["args"]
    assert hub[:2] == ["fleet", "hub"]
    assert parse(HubSettings, hub[2:]) is not None
    connection = HubConnection.from_access("a", ACCESS)
    member = program(member_deployment(Values(), connection))["args"]
    assert member[:2] == ["fleet", "member"]
    settings = parse(MemberSettings, member[2:])
    assert settings is not None
    assert str(settings.token_secret) == "fleet-system/hub-kubeconfig-secret"


@pytest.mark.parametrize("connection", ["service", "url"])
def test_api_servers_reach_webhooks_by_the_service(connection: str) -> None:
    """Registered name and port are those of the Service, which leads to the port of the hub."""
    values = WebhookValues(service="hooks", connection=connection)
    _, service, deployment = hub_workload(Values(), values)
    hub = program(deployment)
    settings = parse(HubSettings, hub["args"][2:])
    assert settings is not None
    webhooks = settings.admission(SYSTEM_NAMESPACE).webhooks
    assert webhooks is not None
    (port,) = service["spec"]["ports"]
    registered = webhooks.endpoint(b"").client_config("/path")
    meta = service["metadata"]
    if connection == "service":
        name, namespace = registered["service"]["name"], registered["service"]["namespace"]
        assert (name, namespace) == (meta["name"], meta["namespace"])
        assert registered["service"]["port"] == port["port"]
    else:
        host = f"{meta['name']}.{meta['namespace']}.svc.cluster.local"
        assert registered["url"] == f"https://{host}:{port['port']}/path"
    assert meta["name"] in webhooks.names[0]  # of the certificate
    (target,) = [each for each in hub["ports"] if each["name"] == port["targetPort"]]
    assert target["containerPort"] == webhooks.address.port
    template = deployment["spec"]["template"]["metadata"]["labels"]
    assert service["spec"]["selector"].items() <= template.items()


def test_a_certificate_of_cert_manager_is_where_the_hub_reads_it() -> None:
    *_, issuer, certificate, deployment = hub_workload(
        Values(), WebhookValues(certificate_secret="s")
    )
    settings = parse(HubSettings, program(deployment)["args"][2:])
    assert settings is not None
    webhooks = settings.admission(SYSTEM_NAMESPACE).webhooks
    assert webhooks is not None
    (mount,) = program(deployment)["volumeMounts"]
    (volume,) = deployment["spec"]["template"]["spec"]["volumes"]
    assert mount["mountPath"] == webhooks.certificate_directory
    assert volume["secret"]["secretName"] == certificate["spec"]["secretName"] == "s"
    assert certificate["spec"]["issuerRef"]["name"] == issuer["metadata"]["name"]
    assert set(webhooks.names) == set(certificate["spec"]["dnsNames"])
    # cert-manager injects the authority of this Certificate into the webhook configurations.
    name = f"{SYSTEM_NAMESPACE}/{certificate['metadata']['name']}"
    assert webhooks.annotations == {"cert-manager.io/inject-ca-from": name}


def test_a_member_reaches_the_hub_as_its_administrator_does() -> None:
    deployment = member_deployment(Values(), HubConnection.from_access("a", ACCESS))
    found = environment(deployment)
    assert found["MEMBER_CLUSTER_NAME"] == "a"
    assert found["HUB_SERVER_URL"] == "https://hub.example"
    assert b64decode(found["HUB_CERTIFICATE_AUTHORITY"]) == b"PEM"
    other = HubConnection.from_access("a", ACCESS, "https://10.0.0.1")
    assert environment(member_deployment(Values(), other))["HUB_SERVER_URL"] == "https://10.0.0.1"


def test_an_insecure_hub_has_no_certificate_authority() -> None:
    connection = HubConnection("a", "https://hub", b"PEM", insecure=True)
    deployment = member_deployment(Values(), connection)
    assert "--tls-insecure" in program(deployment)["args"]
    assert "HUB_CERTIFICATE_AUTHORITY" not in environment(deployment)


def test_a_member_has_an_identity_of_its_own() -> None:
    identity = member_cluster("a", heartbeat_s=15)["spec"]["identity"]
    account = member_identity("a")["metadata"]
    assert (identity["name"], identity["namespace"]) == (account["name"], account["namespace"])


def member(name: str, authority: str = "", *, deleting: bool = False) -> MemberCluster:
    property_ = {"value": authority, "observationTime": "2026-01-01T00:00:00Z"}
    meta: Json = {"name": name, "uid": name}
    if deleting:
        meta["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    status = {"properties": {"k8s.io/cluster-certificate-authority-data": property_}}
    body = member_cluster(name, heartbeat_s=15) | {"metadata": meta}
    return msgspec.convert(body | ({"status": status} if authority else {}), MemberCluster)


def test_a_cluster_joins_under_one_name_and_a_name_is_of_one_cluster() -> None:
    agent = member_deployment(Values(), HubConnection.from_access("a", ACCESS))
    joined = [member("a", "PEM of a"), member("b")]
    assert join_problem("a", joined, agent, "PEM of a") == ""  # renews the token
    assert join_problem("c", [], None, "PEM") == ""
    assert "run kubeocean fleet leave a first" in join_problem("c", joined, agent, "PEM of a")
    # A member that has left, or leaves, may come back under another name.
    assert join_problem("c", [member("b")], agent, "PEM of a") == ""
    assert join_problem("c", [member("a", deleting=True)], agent, "PEM of a") == ""
    assert "is the name of another cluster" in join_problem("a", joined, None, "PEM of another")
    # KubeFleet's agent runs in the same cluster, and Kubeocean's takes its place.
    assert join_problem("a", joined, None, "PEM of a\n") == ""
    assert join_problem("b", joined, None, "PEM of another") == ""  # b has not joined yet


def test_an_agent_does_not_join_as_a_member_that_a_syncer_serves() -> None:
    owner = OwnerReference("cloud.tencent.com/v1beta1", "ClusterBinding", "a", "uid", True)
    without_agent = member("a", "PEM of a")
    meta = msgspec.structs.replace(without_agent.metadata, owner_references=(owner,))
    served = [msgspec.structs.replace(without_agent, metadata=meta)]
    problem = join_problem("a", served, None, "PEM of a")
    assert problem.startswith("is a member without an agent")
    assert "kubeocean fleet leave a" in problem
    assert join_problem("b", served, None, "PEM of b") == ""


def test_a_repeated_join_keeps_the_values_of_options_that_are_not_given() -> None:
    chosen = HubConnection.from_access("a", ACCESS, "https://10.0.0.1")
    agent = member_deployment(Values(image="registry.example/agent:1"), chosen)
    present = MemberOptions().with_present("a", [member("b"), member("a")], agent, DEFAULT)
    assert present == MemberOptions(15, "https://10.0.0.1", "registry.example/agent:1")
    given = MemberOptions(7, "https://10.0.0.2", "registry.example/agent:2")
    assert given.with_present("a", [member("a")], agent, DEFAULT) == given
    # The URL of an administrator's kubeconfig may change, and a newer version has a newer image.
    agent = member_deployment(
        Values(image="kubeocean/kubeocean:0.1"), HubConnection.from_access("a", ACCESS)
    )
    assert MemberOptions().with_present("a", [], agent, DEFAULT) == MemberOptions(60, "", IMAGE)
    # The first join of a cluster, and of one that was a member under another name
    leaving = [member("b", deleting=True)]
    for deployment in (None, member_deployment(Values(image="registry.example/agent:1"), chosen)):
        joins = MemberOptions().with_present("b", leaving, deployment, DEFAULT)
        assert joins == MemberOptions(60, "", IMAGE)


def test_an_identity_is_garbage_collected_with_its_member() -> None:
    [owner] = member_identity("a", owner_uid="u")["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["name"], owner["uid"]) == ("MemberCluster", "a", "u")
    assert "controller" not in owner
    assert "ownerReferences" not in member_identity("a")["metadata"]


def test_an_agent_without_a_name_is_of_no_member() -> None:
    agent = member_deployment(Values(), HubConnection.from_access("a", ACCESS))
    agent["spec"]["template"]["spec"]["containers"][0]["env"] = []
    assert join_problem("b", [member("a")], agent, "") == ""


def test_a_token_is_stored_under_kubefleets_name() -> None:
    secret = token_secret("t")
    assert secret["metadata"]["name"] == "hub-kubeconfig-secret"
    assert secret["data"] == {"token": b64encode(b"t").decode()}


def test_definitions_go_where_their_objects_are() -> None:
    hub = {each["metadata"]["name"] for each in hub_objects()}
    member = {each["metadata"]["name"] for each in member_objects()}
    assert "works.placement.kubernetes-fleet.io" in hub - member
    assert "appliedworks.placement.kubernetes-fleet.io" in member - hub


def test_a_hub_writes_no_secrets_and_no_pods() -> None:
    writes = {
        (rule.group, resource)
        for rule in hub_rights().everywhere
        for resource in rule.resources
        if set(rule.verbs) - {"get", "list", "watch"}
    }
    assert not {("", "secrets"), ("", "pods"), ("*", "*"), ("", "*")} & writes


def listed_rules(rights: Rights) -> list[str]:
    """Return the rows of the reference page for these rights."""
    places = [("everywhere", rule) for rule in rights.everywhere]
    places += [(f"`{name}`", rule) for name, rules in rights.within.items() for rule in rules]
    return [
        f"| {place} | {f'`{rule.group}`' if rule.group else 'core'}"
        f" | {_quoted(rule.resources)} | {_quoted(rule.names) or 'any'} | {', '.join(rule.verbs)} |"
        for place, rule in places
    ]


def _quoted(words: tuple[str, ...]) -> str:
    return ", ".join(f"`{each}`" for each in words)


def test_the_reference_lists_the_rights_of_hub_and_members() -> None:
    page = (Path(__file__).parents[3] / "docs" / "reference" / "fleet-rights.md").read_text()
    rows = [line for line in page.splitlines() if line.startswith("| ")]
    written = [row for row in rows if not row.startswith("| where ")]
    assert written == [*listed_rules(hub_rights()), *listed_rules(member_rights())]


def test_the_bundle_of_members_without_an_agent_is_a_role_of_its_own() -> None:
    values = WorkerValues(namespace="m")
    name = "kubeocean-syncer-fleet-m"
    assert [title(each) for each in agentless_roles(values)] == [
        f"ClusterRole {name}",
        f"ClusterRoleBinding {name}",
    ]
    definitions = [each["kind"] for each in agentless_objects(values)[:-2]]
    assert set(definitions) == {"CustomResourceDefinition"}
    (subject,) = agentless_roles(values)[1]["subjects"]
    assert (subject["name"], subject["namespace"]) == (values.account, "m")


def test_no_permission_of_the_applier_is_granted_without_that_bundle() -> None:
    compute = set(worker_rights("m", ALL_ADD_ONS).permissions())
    assert compute.isdisjoint(applier_permissions())
    verbs = {each.verb for each in agentless_rights().permissions() if each.resource == "*"}
    assert {each.verb for each in applier_permissions()} <= verbs
