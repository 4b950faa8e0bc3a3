"""Rendering: from templates and a binding to objects."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from kubeocean.api import group, naming
from kubeocean.api.bindings import ClusterBinding, SecretReference
from kubeocean.api.group import DEFAULT, TAPESTRY, Domain
from kubeocean.errors import ConfigError
from kubeocean.install.templates import proxier_files, syncer_files
from kubeocean.install.values import Values
from kubeocean.manager.rendering import (
    Files,
    RenderedObject,
    Renderer,
    RolloutComponent,
    TemplateFiles,
    names,
    render,
)
from kubeocean.runtime.objects import Key
from support.rollout_env import Mounted, binding_of

SYNCER = syncer_files(Values())
PROXIER = proxier_files(Values())
ADDED = {"SecretName": "b1", "OwnAccount": False}  # the earlier implementation has neither


def rendered(
    component: RolloutComponent,
    files: Files,
    binding: ClusterBinding | None = None,
    domain: Domain = DEFAULT,
) -> tuple[RenderedObject, ...]:
    binding = binding or binding_of()
    variables = names(component, files, binding, domain)
    objects = render(component, files, variables, binding=binding, domain=domain)
    return tuple(each for each in objects if each.resource.kind != "PodDisruptionBudget")


def complaint(
    component: RolloutComponent, files: Files, binding: ClusterBinding | None = None
) -> str:
    with pytest.raises(ConfigError) as caught:
        rendered(component, files, binding)
    return str(caught.value)


def arguments(wanted: RenderedObject) -> list[str]:
    args: list[str] = wanted.body["spec"]["template"]["spec"]["containers"][0]["args"]
    return args


# Rendered objects


def test_names_are_those_of_the_contract() -> None:
    (syncer,) = rendered(RolloutComponent.SYNCER, SYNCER)
    service, proxier = rendered(RolloutComponent.PROXIER, PROXIER)
    assert syncer.key == Key("kubeocean-system", "kubeocean-syncer-w1")
    assert proxier.key == Key("kubeocean-system", "kubeocean-proxier-w1")
    assert service.key == Key("kubeocean-system", "kubeocean-proxier-w1-svc")
    assert syncer.title == "Deployment kubeocean-system/kubeocean-syncer-w1"


def test_variables_of_the_syncer_are_those_of_the_contract() -> None:
    assert names(RolloutComponent.SYNCER, {}, binding_of(), DEFAULT) == {
        "ClusterBindingName": "b1",
        "ClusterID": "w1",
        "DeploymentName": "kubeocean-syncer-w1",
        "ServiceAccountName": "kubeocean-syncer",
        "RoleName": "kubeocean-syncer",
        "RoleBindingName": "kubeocean-syncer",
        "ClusterRoleName": "kubeocean-syncer",
        "ClusterRoleBindingName": "kubeocean-syncer",
        "SyncerNamespace": "kubeocean-system",
        **ADDED,
    }


def test_variables_of_the_proxier_are_those_of_the_contract() -> None:
    plain = {
        "ClusterBindingName": "b1",
        "ClusterID": "w1",
        "DeploymentName": "kubeocean-proxier-w1",
        "ServiceAccountName": "kubeocean-proxier",
        "RoleName": "kubeocean-proxier",
        "RoleBindingName": "kubeocean-proxier",
        "ClusterRoleName": "kubeocean-proxier",
        "ClusterRoleBindingName": "kubeocean-proxier",
        "ProxierNamespace": "kubeocean-system",
        "ServiceName": "kubeocean-proxier-w1-svc",
        **ADDED,
    }
    without_tls = {"TLSEnabled": False, "TLSSecretName": "", "TLSSecretNamespace": ""}
    assert names(RolloutComponent.PROXIER, {}, binding_of(), DEFAULT) == plain | without_tls
    annotations = {
        DEFAULT.logs_proxy_enabled: "true",
        DEFAULT.logs_proxy_secret_name: "s",
        DEFAULT.logs_proxy_secret_namespace: "n",
    }
    with_tls = {"TLSEnabled": True, "TLSSecretName": "s", "TLSSecretNamespace": "n"}
    binding = binding_of(annotations=annotations)
    assert names(RolloutComponent.PROXIER, {}, binding, DEFAULT) == plain | with_tls


@pytest.mark.parametrize("component", list(RolloutComponent))
def test_each_plain_file_sets_its_variable_and_no_other(component: RolloutComponent) -> None:
    variables = {
        "serviceAccountName": "ServiceAccountName",
        f"{component}Namespace": f"{component.capitalize()}Namespace",
        "roleName": "RoleName",
        "roleBindingName": "RoleBindingName",
        "clusterRoleName": "ClusterRoleName",
        "clusterRoleBindingName": "ClusterRoleBindingName",
    }
    usual = names(component, {}, binding_of(), DEFAULT)
    for file, variable in variables.items():
        changed = names(component, {file: "other\n"}, binding_of(), DEFAULT)
        assert changed == usual | {variable: "other"}


def test_the_binding_owns_rendered_objects() -> None:
    for wanted in (
        *rendered(RolloutComponent.SYNCER, SYNCER),
        *rendered(RolloutComponent.PROXIER, PROXIER),
    ):
        assert wanted.body["metadata"]["ownerReferences"] == [
            {
                "apiVersion": "cloud.tencent.com/v1beta1",
                "kind": "ClusterBinding",
                "name": "b1",
                "uid": "u1",
                "controller": True,
                "blockOwnerDeletion": True,
            }
        ]


def test_objects_of_a_template_without_labels_get_labels() -> None:
    bare = (
        "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: x, uid: bad, finalizers: [a/b]}\n"
        "spec: {template: {spec: {containers: []}}}\nstatus: {replicas: 3}\n"
    )
    (wanted,) = rendered(RolloutComponent.SYNCER, {"deployment.yaml": bare})
    labels = {
        group.APP_NAME: "kubeocean-syncer",
        group.APP_INSTANCE: "b1",
        group.APP_COMPONENT: "syncer",
        group.APP_PART_OF: "kubeocean",
        group.APP_MANAGED_BY: "kubeocean-manager",
        group.LABEL_K8S_APP: "x",
        DEFAULT.cluster_binding: "b1",
    }
    assert wanted.body["metadata"]["labels"] == labels
    assert wanted.body["spec"]["template"]["metadata"]["labels"] == labels
    assert wanted.key == Key("kubeocean-system", "x")
    assert set(wanted.body["metadata"]) == {
        "name", "namespace", "labels", "annotations", "ownerReferences",
    }  # fmt: skip
    assert "status" not in wanted.body


def test_a_budget_is_created_before_the_deployment_and_selects_its_pods() -> None:
    binding = binding_of()
    variables = names(RolloutComponent.SYNCER, SYNCER, binding, DEFAULT)
    budget, deployment = render(
        RolloutComponent.SYNCER, SYNCER, variables, binding=binding, domain=DEFAULT
    )
    assert (budget.resource.kind, budget.key) == ("PodDisruptionBudget", deployment.key)
    assert budget.body["spec"]["selector"] == deployment.body["spec"]["selector"]


def test_a_template_cannot_set_the_owner() -> None:
    text = SYNCER["deployment.yaml"].replace(
        "app.kubernetes.io/managed-by: kubeocean-manager", "app.kubernetes.io/managed-by: helm", 1
    )
    (wanted,) = rendered(RolloutComponent.SYNCER, SYNCER | {"deployment.yaml": text})
    assert wanted.body["metadata"]["labels"][group.APP_MANAGED_BY] == "kubeocean-manager"


def test_plain_files_name_account_and_namespace() -> None:
    files = PROXIER | {"serviceAccountName": "me\n", "proxierNamespace": " there\n"}
    service, proxier = rendered(RolloutComponent.PROXIER, files)
    assert service.key.namespace == proxier.key.namespace == "there"
    assert proxier.body["spec"]["template"]["spec"]["serviceAccountName"] == "me"


def test_an_account_and_a_role_are_created_before_the_deployment() -> None:
    account = "apiVersion: v1\nkind: ServiceAccount\nmetadata: {name: 's-{{.ClusterID}}'}\n"
    role = "apiVersion: rbac.authorization.k8s.io/v1\nkind: Role\nmetadata: {name: r}\nrules: []\n"
    files = SYNCER | {"role.yaml": role, "serviceaccount.yaml": account}
    kinds = [each.resource.kind for each in rendered(RolloutComponent.SYNCER, files)]
    assert kinds == ["ServiceAccount", "Role", "Deployment"]
    assert rendered(RolloutComponent.SYNCER, files)[0].key.name == "s-w1"


def own(*, secret: str = "b1", namespace: str = "kubeocean-system") -> ClusterBinding:
    """Return a binding with its Secret in that namespace."""
    binding = binding_of()
    reference = SecretReference(secret, namespace)
    spec = msgspec.structs.replace(binding.spec, secret_ref=reference)
    return msgspec.structs.replace(binding, spec=spec)


def account(component: RolloutComponent, files: Files, binding: ClusterBinding) -> str:
    deployment = rendered(component, files, binding)[-1]
    name: str = deployment.body["spec"]["template"]["spec"]["serviceAccountName"]
    return name


def test_a_binding_has_accounts_and_roles_of_its_own() -> None:
    binding = own()
    titles = [each.title for each in rendered(RolloutComponent.SYNCER, SYNCER, binding)]
    name = "kubeocean-syncer-w1"
    assert titles == [
        f"ServiceAccount kubeocean-system/{name}",
        f"Role kubeocean-system/{name}",
        f"RoleBinding kubeocean-system/{name}",
        f"RoleBinding kube-node-lease/{name}",
        f"RoleBinding kubeocean-fake/{name}",
        f"ClusterRole {name}",
        f"ClusterRoleBinding {name}",
        f"ClusterRoleBinding {name}-common",
        f"Deployment kubeocean-system/{name}",
    ]
    assert account(RolloutComponent.SYNCER, SYNCER, binding) == name
    assert account(RolloutComponent.PROXIER, PROXIER, binding) == "kubeocean-proxier-w1"
    for each in rendered(RolloutComponent.SYNCER, SYNCER, binding):
        assert each.body["metadata"]["ownerReferences"][0]["uid"] == "u1"


def test_only_a_syncer_with_an_account_of_its_own_reads_secrets_by_namespace() -> None:
    for binding, flag in ((own(), "true"), (own(namespace="team"), "false")):
        deployment = rendered(RolloutComponent.SYNCER, SYNCER, binding)[-1].body
        arguments = deployment["spec"]["template"]["spec"]["containers"][0]["args"]
        assert f"--secrets-by-namespace={flag}" in arguments


def test_the_role_of_a_proxier_names_its_secrets_only() -> None:
    annotations = {DEFAULT.logs_proxy_enabled: "true", DEFAULT.logs_proxy_secret_name: "tls"}
    for extra, secrets in (({}, ["b1"]), (annotations, ["b1", "tls"])):
        metadata = msgspec.structs.replace(own().metadata, annotations=extra)
        binding = msgspec.structs.replace(own(), metadata=metadata)
        role = next(
            each
            for each in rendered(RolloutComponent.PROXIER, PROXIER, binding)
            if each.resource.kind == "Role"
        )
        (rule,) = role.body["rules"]
        assert rule["resourceNames"] == secrets
    elsewhere = annotations | {DEFAULT.logs_proxy_secret_namespace: "n"}
    metadata = msgspec.structs.replace(own().metadata, annotations=elsewhere)
    binding = msgspec.structs.replace(own(), metadata=metadata)
    assert account(RolloutComponent.PROXIER, PROXIER, binding) == "kubeocean-proxier"


def test_templates_that_name_an_account_and_secrets_elsewhere_get_the_shared_account() -> None:
    elsewhere = own(namespace="team")
    earlier = {name: text for name, text in SYNCER.items() if name != "accountPerBinding"}
    theirs = SYNCER | {"serviceAccountName": "theirs"}
    for files, binding, name in (
        (SYNCER, elsewhere, "kubeocean-syncer"),
        (earlier, own(), "kubeocean-syncer"),
        (theirs, own(), "theirs"),
    ):
        assert account(RolloutComponent.SYNCER, files, binding) == name
        assert len(rendered(RolloutComponent.SYNCER, files, binding)) == 1


def test_the_name_of_a_secret_cannot_inject_yaml() -> None:
    binding = own(secret="a']\nx: ['b")
    assert "spec.secretRef.name" in complaint(RolloutComponent.SYNCER, SYNCER, binding)


def test_another_domain_has_other_names() -> None:
    (wanted,) = rendered(
        RolloutComponent.SYNCER, syncer_files(Values(domain=TAPESTRY)), domain=TAPESTRY
    )
    assert wanted.key == Key("tapestry-system", "tapestry-syncer-w1")
    assert "tapestry.io/rollout-digest" in wanted.body["metadata"]["annotations"]


def test_a_long_name_is_shortened_in_labels_only() -> None:
    name = "b" + "-long" * 20
    service, proxier = rendered(RolloutComponent.PROXIER, PROXIER, binding_of(name))
    fitting = naming.label_value(name)
    spec = proxier.body["spec"]
    for labels in (
        proxier.body["metadata"]["labels"],
        spec["selector"]["matchLabels"],
        spec["template"]["metadata"]["labels"],
        spec["template"]["spec"]["topologySpreadConstraints"][0]["labelSelector"]["matchLabels"],
        service.body["spec"]["selector"],
    ):
        assert labels[group.APP_INSTANCE] == fitting
    assert f"--cluster-binding-name={name}" in arguments(proxier)


# The digest


def test_a_digest_changes_with_the_template_and_the_binding_only() -> None:
    (first,) = rendered(RolloutComponent.SYNCER, SYNCER)
    (again,) = rendered(RolloutComponent.SYNCER, SYNCER, binding_of(annotations={"other": "thing"}))
    (other,) = rendered(RolloutComponent.SYNCER, SYNCER, binding_of(uid="u2"))
    edited = SYNCER["deployment.yaml"].replace("replicas: 2", "replicas: 3")
    (changed,) = rendered(RolloutComponent.SYNCER, SYNCER | {"deployment.yaml": edited})
    assert first == again
    assert first.body["metadata"]["annotations"] == {DEFAULT.rollout_digest: first.digest}
    assert len({first.digest, other.digest, changed.digest}) == 3


# TLS


@pytest.mark.parametrize(
    ("annotations", "wanted"),
    [
        ({}, []),
        ({DEFAULT.logs_proxy_enabled: "true"}, []),  # the computing cluster signs one
        ({DEFAULT.logs_proxy_secret_name: "s"}, []),
        ({DEFAULT.logs_proxy_enabled: "false", DEFAULT.logs_proxy_secret_name: "s"}, []),
        (
            {DEFAULT.logs_proxy_enabled: "true", DEFAULT.logs_proxy_secret_name: "s"},
            ["--tls-secret-name=s", "--tls-secret-namespace=kubeocean-system"],
        ),
        (
            {
                DEFAULT.logs_proxy_enabled: "true",
                DEFAULT.logs_proxy_secret_name: "s",
                DEFAULT.logs_proxy_secret_namespace: "n",
            },
            ["--tls-secret-name=s", "--tls-secret-namespace=n"],
        ),
    ],
)
def test_annotations_name_the_certificate(annotations: dict[str, str], wanted: list[str]) -> None:
    _, proxier = rendered(RolloutComponent.PROXIER, PROXIER, binding_of(annotations=annotations))
    assert [each for each in arguments(proxier) if each.startswith("--tls")] == wanted


@pytest.mark.parametrize(
    "annotation", [DEFAULT.logs_proxy_secret_name, DEFAULT.logs_proxy_secret_namespace]
)
@pytest.mark.parametrize(
    "value", ["s\n        - --evil", "s\n", "a: b", "{{.ClusterID}}", "S", ".."]
)
def test_an_annotation_cannot_inject_yaml_into_a_deployment(annotation: str, value: str) -> None:
    annotations = {
        DEFAULT.logs_proxy_enabled: "true",
        DEFAULT.logs_proxy_secret_name: "s",
        DEFAULT.logs_proxy_secret_namespace: "n",
        annotation: value,
    }
    message = complaint(RolloutComponent.PROXIER, PROXIER, binding_of(annotations=annotations))
    assert message.startswith(f"metadata.annotations[{annotation}]: ")


# Templates that render no object


@pytest.mark.parametrize(
    ("text", "reported"),
    [
        ("{{if}}", "syncer template deployment.yaml:1: a value is missing"),
        ("a: {{.Nmae}}", "there is no variable .Nmae"),
        ("", "must be the manifest of an object"),
        ("a: [", "syncer template deployment.yaml: is not a YAML document"),
        ("a: 1\n---\nb: 2", "is not a YAML document"),
        ("kind: Deployment\napiVersion: v1", "apiVersion: must be apps/v1 (got 'v1')"),
        ("apiVersion: apps/v1\nkind: ClusterRole", "kind: must be Deployment"),
        ("apiVersion: apps/v1\nkind: Deployment", "metadata.name"),
        ("apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: A_b}", "metadata.name"),
        ("apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: a}", "spec"),
        (
            "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: a, labels: {x: 1}}",
            "metadata.labels",
        ),
        (
            "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: a}\nspec: {template: 3}",
            "spec.template",
        ),
        ("1: 2", "a key must be a string"),
    ],
)
def test_a_template_without_a_valid_object_is_refused(text: str, reported: str) -> None:
    assert reported in complaint(RolloutComponent.SYNCER, SYNCER | {"deployment.yaml": text})


def test_a_missing_template_is_named() -> None:
    files = {name: text for name, text in PROXIER.items() if name != "service.yaml"}
    assert complaint(RolloutComponent.PROXIER, files) == "proxier template service.yaml: is missing"


def test_a_plain_file_with_an_invalid_name_is_refused() -> None:
    files = SYNCER | {"serviceAccountName": "a b"}
    assert "serviceAccountName" in complaint(RolloutComponent.SYNCER, files)


# Files and plans


def mounts(root: Path) -> tuple[Mounted, Mounted, TemplateFiles]:
    syncers, proxiers = Mounted.syncers(root / "s"), Mounted.proxiers(root / "p")
    directories = {RolloutComponent.SYNCER: syncers.path, RolloutComponent.PROXIER: proxiers.path}
    return syncers, proxiers, TemplateFiles(directories)


def test_files_are_read_again_when_they_change(tmp_path: Path) -> None:
    syncers, _, files = mounts(tmp_path)
    assert files.refresh()
    assert files[RolloutComponent.SYNCER].files == SYNCER
    assert not files.refresh()
    syncers.write(roleName="other")
    assert files.refresh()
    assert files[RolloutComponent.SYNCER].files["roleName"] == "other"
    assert files.revision == 2


def test_a_swap_without_a_change_of_content_is_no_change(tmp_path: Path) -> None:
    syncers, _, files = mounts(tmp_path)
    files.refresh()
    syncers.write()
    assert not files.refresh()
    assert files.revision == 1


def test_files_that_are_added_or_removed_are_noticed(tmp_path: Path) -> None:
    syncers, proxiers, files = mounts(tmp_path)
    files.refresh()
    syncers.write(serviceaccount__yaml="kind: ServiceAccount")
    assert files.refresh()
    proxiers.write(service__yaml=None)
    assert files.refresh()
    assert "service.yaml" in files[RolloutComponent.PROXIER].problem
    assert files[RolloutComponent.SYNCER].problem == ""


@pytest.mark.parametrize("name", ["role.yaml", "syncerNamespace"])
def test_a_file_that_cannot_be_read_is_not_taken_for_absent(tmp_path: Path, name: str) -> None:
    syncers, _, files = mounts(tmp_path)
    syncers.write(role__yaml="kind: Role", syncerNamespace="elsewhere")
    files.refresh()
    before = files[RolloutComponent.SYNCER].files
    unreadable = syncers.path / name
    unreadable.unlink()
    unreadable.write_bytes("# Müller".encode("latin-1"))
    assert files.refresh()
    problem = files[RolloutComponent.SYNCER].problem
    assert problem == f"cannot read {unreadable}: it is not UTF-8"
    assert files[RolloutComponent.SYNCER].files == before
    unreadable.unlink()
    assert files.refresh()
    assert (
        files[RolloutComponent.SYNCER].problem,
        name in files[RolloutComponent.SYNCER].files,
    ) == ("", False)


def test_a_missing_directory_is_a_problem_and_not_an_exception(tmp_path: Path) -> None:
    nowhere = tmp_path / "nowhere"
    files = TemplateFiles({RolloutComponent.SYNCER: nowhere})
    assert files.refresh()
    assert files[RolloutComponent.SYNCER].problem == f"cannot read {nowhere / 'deployment.yaml'}"
    assert files[RolloutComponent.PROXIER].problem


def test_rendered_objects_are_cached_until_an_input_changes(tmp_path: Path) -> None:
    syncers, proxiers = Mounted.syncers(tmp_path / "s"), Mounted.proxiers(tmp_path / "p")
    plans = Renderer(
        {RolloutComponent.SYNCER: syncers.path, RolloutComponent.PROXIER: proxiers.path}, DEFAULT
    )
    assert plans.refresh()
    assert set(plans.namespaces()) == {(each, "kubeocean-system") for each in RolloutComponent}
    first = plans.objects(RolloutComponent.SYNCER, binding_of())
    assert plans.objects(RolloutComponent.SYNCER, binding_of()) is first
    assert plans.objects(RolloutComponent.SYNCER, binding_of(uid="u2")) != first
    syncers.write(deployment__yaml="{{end}}")
    plans.refresh()
    with pytest.raises(ConfigError):
        plans.objects(RolloutComponent.SYNCER, binding_of())
    assert [each.key for each in plans.known(RolloutComponent.SYNCER, "b1")] == [
        each.key for each in first
    ]
    plans.forget("b1")
    assert plans.known(RolloutComponent.SYNCER, "b1") == ()


FOREIGN_SYNCER = """
apiVersion: apps/v1
kind: Deployment
metadata: {name: "{{.DeploymentName}}", namespace: "{{.SyncerNamespace}}"}
spec:
  template:
    spec:
      containers:
      - name: syncer
        args: ["--cluster-binding-name={{.ClusterBindingName}}"]
"""


@pytest.mark.parametrize("template", [SYNCER["deployment.yaml"], FOREIGN_SYNCER])
def test_a_syncer_gets_the_namespace_of_its_proxier(tmp_path: Path, template: str) -> None:
    """With templates of the earlier implementation as well, which have no flag for it."""
    syncers, proxiers = Mounted.syncers(tmp_path / "s"), Mounted.proxiers(tmp_path / "p")
    syncers.write(deployment__yaml=template)
    plans = Renderer(
        {RolloutComponent.SYNCER: syncers.path, RolloutComponent.PROXIER: proxiers.path}, DEFAULT
    )

    def variables(component: RolloutComponent) -> dict[str, str]:
        plans.refresh()
        deployment = plans.objects(component, binding_of())[-1]
        container = deployment.body["spec"]["template"]["spec"]["containers"][0]
        return {each["name"]: each.get("value", "") for each in container.get("env", [])}

    name = "KUBEOCEAN_PROXIER_NAMESPACE"
    assert name not in variables(RolloutComponent.SYNCER)
    proxiers.write(proxierNamespace="edge\n")
    assert variables(RolloutComponent.SYNCER)[name] == "edge"
    assert name not in variables(RolloutComponent.PROXIER)
    # Syncers keep the namespace in which the proxiers still run.
    proxiers.write(proxierNamespace="No Name")
    assert variables(RolloutComponent.SYNCER)[name] == "edge"
    named_in_template = proxiers.files["deployment.yaml"].replace("{{.ProxierNamespace}}", "field")
    proxiers.write(deployment__yaml=named_in_template, proxierNamespace="edge")
    assert variables(RolloutComponent.SYNCER)[name] == "field"


def test_a_syncer_template_may_set_the_namespace_of_proxiers_itself() -> None:
    entry = "env: [{name: KUBEOCEAN_PROXIER_NAMESPACE, value: own}]\n        args:"
    files = {"deployment.yaml": FOREIGN_SYNCER.replace("args:", entry)}
    binding, variables = binding_of(), names(RolloutComponent.SYNCER, {}, binding_of(), DEFAULT)
    (syncer,) = render(
        RolloutComponent.SYNCER,
        files,
        variables,
        binding=binding,
        domain=DEFAULT,
        proxier_namespace="edge",
    )
    (container,) = syncer.body["spec"]["template"]["spec"]["containers"]
    assert container["env"] == [{"name": "KUBEOCEAN_PROXIER_NAMESPACE", "value": "own"}]


def test_an_autoscaler_lets_its_deployment_have_other_replicas() -> None:
    files = proxier_files(Values(max_replicas={"proxier": 5}))
    objects = {each.resource.kind: each for each in rendered(RolloutComponent.PROXIER, files)}
    assert list(objects) == ["Service", "Deployment", "HorizontalPodAutoscaler"]
    assert objects["Deployment"].scale == (2, 5)
    assert objects["HorizontalPodAutoscaler"].key == objects["Deployment"].key
    other = files["horizontalpodautoscaler.yaml"].replace(
        "kind: Deployment\n    name: '{{.DeploymentName}}'",
        "kind: Deployment\n    name: another",
    )
    assert other != files["horizontalpodautoscaler.yaml"]
    changed = rendered(RolloutComponent.PROXIER, files | {"horizontalpodautoscaler.yaml": other})
    assert {each.scale for each in changed} == {None}


def test_an_autoscaler_without_a_target_is_an_error_of_its_file() -> None:
    files = proxier_files(Values(max_replicas={"proxier": 5}))
    text = files["horizontalpodautoscaler.yaml"].replace("scaleTargetRef", "target")
    with pytest.raises(ConfigError, match=r"horizontalpodautoscaler\.yaml: .*scaleTargetRef"):
        rendered(RolloutComponent.PROXIER, files | {"horizontalpodautoscaler.yaml": text})


def test_objects_in_another_cluster_name_their_binding_and_have_no_owner() -> None:
    binding = binding_of()
    variables = names(RolloutComponent.SYNCER, SYNCER, binding, DEFAULT)
    for each in render(
        RolloutComponent.SYNCER, SYNCER, variables, binding=binding, domain=DEFAULT, owned=False
    ):
        meta = each.body["metadata"]
        assert "ownerReferences" not in meta
        assert meta["annotations"][DEFAULT.rolled_out_for] == f"{binding.name}/{binding.uid}"
