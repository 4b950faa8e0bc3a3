"""Tests that the files under deploy/ give the objects of an install, with kustomize and Helm."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
import yaml

from kubeocean.api.group import TAPESTRY
from kubeocean.fleet.applier.health_checks import read_health_checks
from kubeocean.install.computing_objects import computing_objects
from kubeocean.install.fleet import (
    HubConnection,
    WebhookValues,
    hub_objects,
    hub_workload,
    member_deployment,
    member_objects,
    token_secret,
)
from kubeocean.install.manifests import SAMPLE_CONNECTION, render
from kubeocean.install.object_parts import title
from kubeocean.install.roles import AddOn
from kubeocean.install.values import PodSecurity, Size, Values, WorkerValues
from kubeocean.install.worker_objects import worker_objects
from kubeocean.local.assets import ensure
from kubeocean.runtime.objects import Json

ROOT = Path(__file__).parents[3]
DEPLOY = ROOT / "deploy"
DIRECTIVE = re.compile(r"^\{\{.*\}\}$", re.MULTILINE)


def comparable(objects: list[Json]) -> dict[str, Json]:
    """Return the objects by name, with texts that are YAML replaced by their parsed content."""
    return {title(each): each | {"data": _read(each.get("data"))} for each in objects}


def _read(data: dict[str, str] | None) -> object:
    return {
        name: list(yaml.safe_load_all(DIRECTIVE.sub("", content)))
        if name.endswith(".yaml")
        else content
        for name, content in (data or {}).items()
    }


def output(*words: str | Path) -> list[Json]:
    done = subprocess.run(list(map(str, words)), capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return [each for each in yaml.safe_load_all(done.stdout) if each]


def test_all_files_under_deploy_are_up_to_date() -> None:
    stale = [
        name
        for name, content in render().items()
        if not (DEPLOY / name).exists() or (DEPLOY / name).read_text("utf-8") != content
    ]
    assert stale == [], "run scripts/manifests"


def test_deploy_contains_no_other_files() -> None:
    made = {DEPLOY / name for name in render()}
    parts = ("charts", "kustomize", "monitoring")
    files = {path for part in parts for path in (DEPLOY / part).rglob("*") if path.is_file()}
    assert files == made | {DEPLOY / "monitoring" / "alerts.test.yaml"}


# kustomize


@pytest.mark.parametrize(
    ("side", "objects"),
    [("computing", computing_objects(Values())), ("worker", worker_objects(WorkerValues()))],
)
async def test_kustomize_renders_the_objects_of_an_install(side: str, objects: list[Json]) -> None:
    kubectl = (await ensure(("kubectl",))).path("kubectl")
    given = output(str(kubectl), "kustomize", DEPLOY / "kustomize" / side)
    assert comparable(given) == comparable(objects)


# Helm


@pytest.fixture(scope="session")
def helm() -> Path:
    """The real one, which `make test` has built already where there was none."""
    process = subprocess.run([ROOT / "scripts" / "helm"], stdout=subprocess.PIPE, text=True)
    if process.returncode:
        pytest.skip("there is neither helm nor go in PATH")
    return Path(process.stdout.strip())


def templated(helm: Path, chart: str, *settings: str, preset: str = "") -> dict[str, Json]:
    where = DEPLOY / "charts" / chart
    flags: list[str | Path] = ["-f", where / f"values-{preset}.yaml"] if preset else []
    flags += [word for each in settings for word in ("--set", each)]
    objects = output(helm, "template", "r", where, "--kube-version", "1.34.0", *flags)
    return comparable([each for each in objects if not is_hook(each)])


def is_hook(body: Json) -> bool:
    return "helm.sh/hook" in body["metadata"].get("annotations", {})


def test_helm_checks_that_no_worker_is_bound_before_it_uninstalls(helm: Path) -> None:
    where = DEPLOY / "charts" / "kubeocean"
    objects = output(helm, "template", "r", where, "--kube-version", "1.34.0")
    (job,) = [each for each in objects if is_hook(each)]
    assert job["metadata"]["annotations"]["helm.sh/hook"] == "pre-delete"
    pod = job["spec"]["template"]["spec"]
    assert pod["serviceAccountName"] == "kubeocean-manager"
    assert pod["containers"][0]["args"] == ["uninstall", "--check", "--label-domain=kubeocean.io"]
    assert job["spec"]["backoffLimit"] == 0
    kept = [each for each in objects if each["kind"] == "Namespace"]
    assert len(kept) == 2
    for each in kept:
        assert each["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep"


def test_helm_renders_the_objects_of_an_install(helm: Path) -> None:
    assert templated(helm, "kubeocean") == comparable(computing_objects(Values()))
    assert templated(helm, "kubeocean-worker") == comparable(worker_objects(WorkerValues()))


def test_helm_renders_the_objects_of_an_install_with_other_values(helm: Path) -> None:
    values = Values(
        image="mirror.example/kubeocean/kubeocean:7",
        pull_secrets=("puller",),
        tolerations=("dedicated=ours:NoSchedule",),
        replicas=3,
        size=Size.LARGE,
        log_level="debug",
        time_zone="Asia/Shanghai",
        kubeconfig_namespaces=("team-a", "team-b"),
        network_policies=False,
        monitoring=True,
    )
    settings = [
        "global.imageRegistry=mirror.example",
        "global.imagePullSecrets[0].name=puller",
        "global.tolerations[0].key=dedicated",
        "global.tolerations[0].operator=Equal",
        "global.tolerations[0].value=ours",
        "global.tolerations[0].effect=NoSchedule",
        "size=large",
        "logging.level=debug",
        "syncer.timeZone=Asia/Shanghai",
        "kubeconfigNamespaces={team-a,team-b}",
        "networkPolicies.enabled=false",
        "monitoring.enabled=true",
    ]
    for component in ("manager", "syncer", "proxier"):
        settings += [f"{component}.replicas=3", f"{component}.image.tag=7"]
    assert templated(helm, "kubeocean", *settings) == comparable(computing_objects(values))


def test_helm_renders_the_objects_of_the_production_preset(helm: Path) -> None:
    values = Values(
        component_replicas={"manager": 3, "proxier": 4},
        near_control_plane=True,
        tolerations=("dedicated:NoSchedule",),
    )
    settings = (
        "proxier.replicas=4",
        "global.tolerations[0].key=dedicated",
        "global.tolerations[0].operator=Exists",
        "global.tolerations[0].effect=NoSchedule",
    )
    given = templated(helm, "kubeocean", *settings, preset="production")
    assert given == comparable(computing_objects(values))


@pytest.mark.parametrize("size", list(Size))
def test_helm_sets_the_resources_of_a_size(helm: Path, size: Size) -> None:
    given = templated(helm, "kubeocean", f"size={size}")
    assert given == comparable(computing_objects(Values(size=size)))


def test_helm_renders_the_objects_of_another_label_domain(helm: Path) -> None:
    own, monitored = "labelDomain=tapestry.io", "monitoring.enabled=true"
    given = templated(helm, "kubeocean", own, monitored)
    assert given == comparable(computing_objects(Values(domain=TAPESTRY, monitoring=True)))
    worker = templated(helm, "kubeocean-worker", own)
    assert worker == comparable(worker_objects(WorkerValues(domain=TAPESTRY)))
    shared = templated(helm, "kubeocean-worker", own, "namespace.name=kubeocean-worker")
    values = WorkerValues(domain=TAPESTRY, namespace="kubeocean-worker")
    assert shared == comparable(worker_objects(values))


def test_helm_refuses_a_label_domain_that_is_none(helm: Path) -> None:
    for chart in ("kubeocean", "kubeocean-worker"):
        where = DEPLOY / "charts" / chart
        version = ("--kube-version", "1.34.0")
        words = [helm, "template", "r", where, *version, "--set", "labelDomain=Not A Domain"]
        done = subprocess.run(words, capture_output=True, text=True, timeout=60)
        assert done.returncode != 0
        assert 'must be a lowercase DNS subdomain (got "Not A Domain")' in done.stderr


@pytest.mark.parametrize(
    "add_ons", [(), (AddOn.METRICS,), (AddOn.VOLUMES, AddOn.LOG_CONFIGS), tuple(AddOn)]
)
def test_helm_renders_the_objects_of_other_workers(helm: Path, add_ons: tuple[AddOn, ...]) -> None:
    values = WorkerValues(
        namespace="team",
        add_ons=add_ons,
        quota={**WorkerValues().quota, "count/pods": "5k"},
        isolated=True,
    )
    chosen = f"addOns={{{','.join(add_ons)}}}"
    settings = ("namespace.name=team", chosen, "quota.count/pods=5k", "isolated=true")
    given = templated(helm, "kubeocean-worker", *settings)
    assert given == comparable(worker_objects(values))


def test_a_second_release_of_a_worker_has_no_object_of_the_first(helm: Path) -> None:
    """Pods of all releases need the priority class: uninstalling one release keeps it."""
    name = "PriorityClass kubeocean-default"
    first = templated(helm, "kubeocean-worker")
    assert first[name]["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep"
    assert [each for each in first if each.startswith("PriorityClass")] == [name]
    team = ("namespace.name=team", "priorityClass.create=false", "crd.enabled=false")
    second = templated(helm, "kubeocean-worker", *team)
    assert not [each for each in second if each.startswith("PriorityClass")]
    assert "Namespace team" in second
    assert not set(first) & set(second), "Helm lets an object belong to one release only"


def test_helm_renders_the_limits_that_an_owner_chose(helm: Path) -> None:
    batch = {"key": "pool", "operator": "In", "values": ["batch"]}
    values = WorkerValues(
        pod_security=PodSecurity.PRIVILEGED,
        egress=False,
        nodes={"nodeSelectorTerms": [{"matchExpressions": [batch]}]},
        priority_classes=("spot",),
        max_grace_s=31_536_000,
    )
    settings = (
        "guests=privileged",
        "egress.enabled=false",
        "nodes[0][0]=pool In batch",
        "priorityClasses[0]=spot",
        "maxGraceSeconds=31536000",
    )
    given = templated(helm, "kubeocean-worker", *settings)
    assert given == comparable(worker_objects(values))


def test_helm_renders_autoscalers_and_sharded_syncers(helm: Path) -> None:
    values = Values(
        component_replicas={"proxier": 3},
        shard_syncers=True,
        max_replicas={"syncer": 5, "proxier": 9},
        target_cpu_percent=60,
    )
    settings = ["proxier.replicas=3", "syncer.sharding=true"]
    for component, number in values.max_replicas.items():
        settings += [
            f"{component}.autoscaling.enabled=true",
            f"{component}.autoscaling.maxReplicas={number}",
            f"{component}.autoscaling.targetCPUUtilizationPercentage=60",
        ]
    assert templated(helm, "kubeocean", *settings) == comparable(computing_objects(values))


def test_helm_refuses_autoscaled_syncers_without_shards(helm: Path) -> None:
    where = DEPLOY / "charts" / "kubeocean"
    scaled = ("--set", "syncer.autoscaling.enabled=true")
    words = [helm, "template", "r", where, "--kube-version", "1.34.0", *scaled]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60)
    assert done.returncode != 0
    assert "syncer.autoscaling.enabled: needs syncer.sharding" in done.stderr


def test_helm_refuses_an_unknown_size(helm: Path) -> None:
    where = DEPLOY / "charts" / "kubeocean"
    words = [helm, "template", "r", where, "--kube-version", "1.34.0", "--set", "size=huge"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60)
    assert done.returncode != 0
    assert 'must be small, medium or large (got "huge")' in done.stderr


# Prometheus


# The charts and manifests of a fleet


def hub_installation(values: Values, webhooks: WebhookValues | None = None) -> list[Json]:
    return [*hub_objects(), *hub_workload(values, webhooks)]


def member_installation(values: Values, connection: HubConnection) -> list[Json]:
    return [*member_objects(), member_deployment(values, connection)]


@pytest.mark.parametrize(
    ("side", "objects"),
    [
        ("fleet-hub", hub_installation(Values())),
        ("fleet-member", member_installation(Values(), SAMPLE_CONNECTION)),
    ],
)
async def test_kustomize_renders_the_objects_of_a_fleet(side: str, objects: list[Json]) -> None:
    kubectl = (await ensure(("kubectl",))).path("kubectl")
    given = output(str(kubectl), "kustomize", DEPLOY / "kustomize" / side)
    assert comparable(given) == comparable(objects)


def test_helm_renders_the_objects_of_a_fleet(helm: Path) -> None:
    assert templated(helm, "kubeocean-fleet-hub") == comparable(hub_installation(Values()))
    connection = HubConnection("berlin", "https://hub.example", b"PEM")
    given = templated(
        helm,
        "kubeocean-fleet-member",
        "name=berlin",
        "hub.url=https://hub.example",
        "hub.certificateAuthority=PEM",
        "hub.token=secret",
    )
    objects = [*member_installation(Values(), connection), token_secret("secret")]
    assert given == comparable(objects)


def test_helm_renders_the_objects_of_a_fleet_with_other_values(helm: Path) -> None:
    values = Values(
        image="mirror.example/kubeocean/kubeocean:7",
        pull_secrets=("puller",),
        replicas=3,
        size=Size.LARGE,
        log_level="debug",
    )
    settings = [
        "global.imageRegistry=mirror.example",
        "global.imagePullSecrets[0].name=puller",
        "size=large",
        "logging.level=debug",
    ]
    own = ("replicas=3", "image.tag=7", "args={--v=2}")
    hub = templated(helm, "kubeocean-fleet-hub", *settings, *(f"hub.{each}" for each in own))
    expected = hub_installation(values)
    expected[-1]["spec"]["template"]["spec"]["containers"][0]["args"].append("--v=2")
    assert hub == comparable(expected)
    insecure = HubConnection("123", "https://hub.example", insecure=True)
    member = templated(
        helm,
        "kubeocean-fleet-member",
        *settings,
        *(f"member.{each}" for each in own),
        "name=123",
        "hub.url=https://hub.example",
        "hub.insecure=true",
        "hub.certificateAuthority=ignored",
    )
    expected = member_installation(values, insecure)
    expected[-1]["spec"]["template"]["spec"]["containers"][0]["args"].append("--v=2")
    assert member == comparable(expected)
    without = templated(helm, "kubeocean-fleet-hub", "crd.enabled=false", "namespace.create=false")
    kinds = {title.partition(" ")[0] for title in without}
    assert not kinds & {"CustomResourceDefinition", "Namespace"}


def test_helm_mounts_the_health_checks_of_a_member(helm: Path, tmp_path: Path) -> None:
    def agent(checks: dict[str, str]) -> tuple[Json, list[Json]]:
        """Return the pod template of the agent, and all ConfigMaps."""
        values = tmp_path / "values.yaml"
        hub = {"url": "https://h"}
        document = {"name": "a", "hub": hub, "member": {"healthChecks": checks}}
        values.write_text(yaml.safe_dump(document))
        where = DEPLOY / "charts" / "kubeocean-fleet-member"
        words = ("template", "r", where, "--kube-version", "1.34.0", "--values", values)
        objects = output(helm, *words)
        (deployment,) = (each for each in objects if each["kind"] == "Deployment")
        maps = [each for each in objects if each["kind"] == "ConfigMap"]
        return deployment["spec"]["template"], maps

    template, maps = agent({})
    assert maps == []
    (program,) = template["spec"]["containers"]
    assert not any("health-checks" in each for each in program["args"])
    assert "volumes" not in template["spec"] and "volumeMounts" not in program
    expression = "self.status.phase == 'Ready' &&\n  self.metadata.name != \"{{ .Values }}\""
    template, (config,) = agent({"Database.example.com": expression})
    (program,) = template["spec"]["containers"]
    (mount,), (volume,) = program["volumeMounts"], template["spec"]["volumes"]
    assert volume["configMap"]["name"] == config["metadata"]["name"]
    assert f"--health-checks={mount['mountPath']}/checks.yaml" in program["args"]
    content = config["data"]["checks.yaml"].encode()
    assert read_health_checks(content, "checks.yaml") == {("example.com", "Database"): expression}
    other, _ = agent({"Job.batch": "true"})
    assert other["metadata"]["annotations"] != template["metadata"]["annotations"]


@pytest.mark.parametrize(
    ("settings", "webhooks"),
    [
        (("enableWebhook=false",), WebhookValues(enabled=False)),
        (
            ("enableGuardRail=true", "webhookServiceName=hooks", "webhookClientConnectionType=url"),
            WebhookValues(guard_rail=True, service="hooks", connection="url"),
        ),
        (
            ("useCertManager=true", "webhookCertSecretName=hook-certificate"),
            WebhookValues(certificate_secret="hook-certificate"),
        ),
    ],
    ids=["off", "guard rail by URL", "cert-manager"],
)
def test_helm_renders_the_webhooks_of_a_hub(
    helm: Path, settings: tuple[str, ...], webhooks: WebhookValues
) -> None:
    given = templated(helm, "kubeocean-fleet-hub", *settings)
    assert given == comparable(hub_installation(Values(), webhooks))


def test_helm_refuses_an_unknown_connection_to_webhooks(helm: Path) -> None:
    where = DEPLOY / "charts" / "kubeocean-fleet-hub"
    wrong = "webhookClientConnectionType=magic"
    words = [helm, "template", "r", where, "--kube-version", "1.34.0", "--set", wrong]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60)
    assert done.returncode != 0
    assert 'webhookClientConnectionType: must be service or url (got "magic")' in done.stderr


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ((), "name: must be the name of the MemberCluster"),
        (("name=a",), "hub.url: must be the URL of the hub's API server"),
        (("name=" + "a" * 51, "hub.url=https://h"), "name: must have at most 50 characters"),
        (("name=a", "hub.url=https://h", "size=huge"), "size: must be small, medium or large"),
    ],
)
def test_helm_names_the_value_of_a_member_that_is_wrong(
    helm: Path, settings: tuple[str, ...], message: str
) -> None:
    flags = [word for each in settings for word in ("--set", each)]
    where = DEPLOY / "charts" / "kubeocean-fleet-member"
    words = [helm, "template", "r", where, "--kube-version", "1.34.0", *flags]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60)
    assert done.returncode != 0
    assert message in done.stderr


def test_uninstalling_a_hub_deletes_no_member_and_no_placement() -> None:
    objects = hub_installation(Values())
    kept = [each for each in objects if each["kind"] in ("CustomResourceDefinition", "Namespace")]
    assert len(kept) > 20
    for each in kept:
        assert each["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep"
