"""Tests of the command with which a container runs as a process."""

from __future__ import annotations

from pathlib import Path

import pytest

from kubeocean.install.computing_objects import manager_deployment
from kubeocean.install.templates import proxier_deployment
from kubeocean.install.values import IMAGE, Values
from kubeocean.local.process_node.programs import PodPlace, environment, listens, program, refusal
from kubeocean.runtime.objects import Json

PLACE = PodPlace(
    address="127.9.8.7",
    kubeconfig=Path("/pods/x/kubeconfig"),
    root=Path("/pods/x"),
    mounts={"syncer-template": Path("/pods/x/volumes/s")},
)


def pod(*containers: Json, **spec: object) -> Json:
    return {
        "metadata": {"name": "m-1", "namespace": "kubeocean-system", "labels": {"a": "b"}},
        "spec": {"containers": list(containers), "nodeName": "here", **spec},
    }


def container(*args: str, **more: object) -> Json:
    return {"name": "c", "image": IMAGE, "args": list(args), **more}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (pod(container("syncer")), ""),
        (pod(container(command=["/syncer"])), ""),
        (pod(container("syncer", image=f"{IMAGE.partition(':')[0]}:9.9")), ""),
        (pod(container("syncer", image="busybox:1")), "only kubeocean/kubeocean is run here"),
        (pod(container(image="evil/kubeocean/kubeocean:1")), "only kubeocean/kubeocean is run"),
        (pod(container(command=["/bin/sh", "-c", "true"])), "only Kubeocean's programs"),
        (pod(container(command=["/syncer", "x"])), "only Kubeocean's programs"),
        (pod(container("kubeconfig", "-o", "yaml")), "only manager, syncer, proxier are run here"),
        (pod(container("up")), "only manager, syncer, proxier are run here, not up"),
        (pod(container()), "only manager, syncer, proxier are run here, not kubeocean"),
        (pod(container("syncer", "--kubeconfig=/cfg/x")), "flag --kubeconfig is not allowed"),
        (pod(container("syncer", "--allow-exec-plugins")), "flag --allow-exec-plugins is not"),
        (
            pod(container("syncer"), container(env=[{"name": "X"}])),
            "only manager, syncer, proxier are run",
        ),
        *(
            (pod(container("syncer", env=[{"name": name}])), f"variable {name} is not passed on")
            for name in ("PYTHONPATH", "KUBECONFIG", "LD_PRELOAD", "PATH", "HOME", "HTTPS_PROXY")
        ),
        (pod(container("syncer", env=[{"name": "KUBEOCEAN_WORKER_FILES"}])), ""),
        (
            pod(container("syncer")) | {"metadata": {"namespace": "team"}},
            "a process node runs only pods of namespace kubeocean-system; this pod is in team",
        ),
        (
            pod(container("syncer")) | {"metadata": {}},
            "a process node runs only pods of namespace kubeocean-system",
        ),
        (
            pod(container("syncer"), initContainers=[container()]),
            "a process node runs only pods without init containers",
        ),
        (
            pod(container("syncer", env=[{"name": "POD_IP", "valueFrom": {"secretKeyRef": {}}}])),
            "variable POD_IP comes from secretKeyRef",
        ),
    ],
)
def test_only_our_own_programs_are_run(given: Json, message: str) -> None:
    actual = refusal(given)
    assert actual.startswith(message)
    assert bool(actual) is bool(message)


def test_what_is_installed_is_run_as_it_is() -> None:
    spec = manager_deployment(Values())["spec"]["template"]["spec"]
    whole = pod(**spec) | {"spec": spec}
    assert refusal(whole) == ""
    (manager,) = spec["containers"]
    assert listens(manager) == {"metrics-bind-address": 8080, "health-probe-bind-address": 8081}
    made = program(
        manager, whole, PLACE, {"metrics-bind-address": 8080, "health-probe-bind-address": 12_345}
    )
    assert made.argv[1:6] == ("-I", "-X", "kubeocean_pod=/pods/x", "-m", "kubeocean")
    assert made.argv[6] == "manager"
    assert made.argv[-2:] == (
        "--metrics-bind-address=127.9.8.7:8080",
        "--health-probe-bind-address=127.9.8.7:12345",
    )
    assert made.env["POD_NAME"] == made.env["HOSTNAME"] == "m-1"
    assert made.env["POD_NAMESPACE"] == "kubeocean-system"
    assert made.env["POD_IP"] == "127.9.8.7"
    assert made.env["KUBECONFIG"] == "/pods/x/kubeconfig"
    assert made.env["KUBEOCEAN_SYNCER_TEMPLATE_DIR"] == "/pods/x/volumes/s"
    assert made.env["KUBEOCEAN_PROXIER_TEMPLATE_DIR"] == "/etc/kubeocean/proxier-template"


def test_a_proxier_listens_on_its_own_address_only() -> None:
    (proxier,) = proxier_deployment(Values())["spec"]["template"]["spec"]["containers"]
    wanted = listens(proxier)
    assert wanted == {
        "metrics-bind-address": 8080,
        "health-probe-bind-address": 8081,
        "listen-port": 10250,
        "prometheus-vnode-base-port": 9006,
    }
    made = program(proxier, pod(proxier), PLACE, wanted)
    assert "--listen-address=127.9.8.7" in made.argv
    assert "--listen-port=10250" in made.argv


@pytest.mark.parametrize(
    ("args", "actual"),
    [
        (("syncer", "--metrics-bind-address=0"), {"health-probe-bind-address": 8081}),
        (
            ("syncer", "--metrics-bind-address", ":90", "-health-probe-bind-address=h:91"),
            {"metrics-bind-address": 90, "health-probe-bind-address": 91},
        ),
        (("proxier",), {"listen-port": 10250, "prometheus-vnode-base-port": 9006}),
        (("--version",), {}),
        ((), {}),
    ],
)
def test_where_a_program_listens_is_what_its_flags_say(
    args: tuple[str, ...], actual: dict[str, int]
) -> None:
    assert listens(container(*args)) == actual


def test_the_downward_api_tells_of_the_pod() -> None:
    paths = ("metadata.labels['a']", "metadata.annotations['n']", "spec.nodeName")
    env = [
        {"name": f"V{n}", "valueFrom": {"fieldRef": {"fieldPath": path}}}
        for n, path in enumerate(paths)
    ]
    one = container("syncer", env=[*env, {"name": "PLAIN", "value": "x"}, {"name": "EMPTY"}])
    actual = program(one, pod(one), PLACE, {}).env
    assert [actual[name] for name in ("V0", "V1", "V2", "PLAIN", "EMPTY")] == [
        "b", "", "here", "x", "",
    ]  # fmt: skip


def test_paths_of_mounts_are_those_of_this_machine() -> None:
    one = container(
        env=[{"name": "A", "value": "/etc/t/x.yaml"}, {"name": "B", "value": "/etc/two"}],
        volumeMounts=[{"name": "syncer-template", "mountPath": "/etc/t/"}],
    )
    actual = program(one, pod(one), PLACE, {}).env
    assert (actual["A"], actual["B"]) == ("/pods/x/volumes/s/x.yaml", "/etc/two")


def test_little_of_our_environment_goes_along() -> None:
    ours = {
        "PATH": "/bin",
        "PYTHONPATH": "/x",
        "HTTPS_PROXY": "http://x",
        "KUBECONFIG": "/home/x",
        "TZ": "Asia/Tokyo",
    }
    assert environment(ours) == {"PATH": "/bin", "TZ": "UTC"}
