"""Command lines and kubeconfigs: pure."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from kubeocean.errors import ConfigError
from kubeocean.local.accounts import file_name, kubeconfig
from kubeocean.local.components import (
    COMPONENTS,
    ControlPlanePlan,
    Ports,
    check_components,
    command,
    identities,
)
from kubeocean.local.pki import LocalAuthority, Subject


def _plan(**changes: object) -> ControlPlanePlan:
    settings: dict[str, object] = {
        "name": "c",
        "root": Path("/root-of-c"),
        "components": COMPONENTS,
        "ports": Ports(1, 2, 3, 4, 5),
    }
    return ControlPlanePlan(**(settings | changes))


def test_components_start_in_their_order_whatever_was_asked() -> None:
    assert check_components(list(reversed(COMPONENTS))) == COMPONENTS


@pytest.mark.parametrize(
    ("names", "complaint"),
    [(["etcd"], "must include kube-apiserver"), ([*COMPONENTS, "kubelet"], "kubelet")],
)
def test_an_impossible_set_of_components_is_refused(names: list[str], complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        check_components(names)


def test_what_the_user_adds_comes_last() -> None:
    flags = command(_plan(extra_args={"etcd": ["--log-level=debug"]}), "etcd")
    assert flags[-1] == "--log-level=debug"


def test_only_an_ephemeral_cluster_goes_without_fsync() -> None:
    assert not [flag for flag in command(_plan(), "etcd") if "fsync" in flag]
    assert "--unsafe-no-fsync=true" in command(_plan(ephemeral=True), "etcd")


def test_feature_gates_reach_every_kubernetes_component() -> None:
    plan = _plan(feature_gates={"A": True, "B": False})
    with_gates = [
        name for name in COMPONENTS if "--feature-gates=A=true,B=false" in command(plan, name)
    ]
    assert with_gates == list(COMPONENTS[1:])


def test_a_cluster_on_another_address_advertises_it_and_is_certified_for_it() -> None:
    plan = _plan(listen="10.1.2.3", sans=("c.example",))
    assert plan.server == "https://10.1.2.3:1"
    assert "--advertise-address=10.1.2.3" in command(plan, "kube-apiserver")
    assert {"10.1.2.3", "c.example"} <= set(identities(plan)["apiserver"][1].sans)


def test_a_cluster_on_all_addresses_is_reached_on_loopback() -> None:
    assert _plan(listen="0.0.0.0").server == "https://127.0.0.1:1"
    assert _plan(listen="::1").server == "https://[::1]:1"


def test_without_a_controller_manager_pods_need_no_service_account() -> None:
    plan = _plan(components=COMPONENTS[:2])
    flag = "--disable-admission-plugins=ServiceAccount"
    assert flag in command(plan, "kube-apiserver")
    assert flag not in command(_plan(), "kube-apiserver")


def test_a_kubeconfig_holds_a_certificate_or_a_token() -> None:
    identity = LocalAuthority.create("ca").issue(Subject("ann", client=True))
    by_certificate = yaml.safe_load(
        kubeconfig("c", "https://x", b"ca", user="ann", credential=identity)
    )
    assert set(by_certificate["users"][0]["user"]) == {"client-certificate-data", "client-key-data"}
    by_token = yaml.safe_load(kubeconfig("c", "https://x", b"ca", user="bob", credential="secret"))
    assert by_token["users"] == [{"name": "bob", "user": {"token": "secret"}}]
    assert by_token["current-context"] == "c"


def test_users_never_share_a_file() -> None:
    assert file_name("ann") == "ann.kubeconfig"
    assert len({file_name("a:b"), file_name("a/b"), file_name("a-b"), file_name("a b")}) == 4
    assert "/" not in file_name("../../etc/passwd")
