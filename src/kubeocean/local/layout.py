"""Layout: what a cluster keeps on disk, and who may use it.

    root/
    ├── lock               held while the cluster runs
    ├── ports.json         the same ports at the next start
    ├── admin.kubeconfig   users/*.kubeconfig
    ├── pki/  config/      what the components read
    ├── etcd/              the data
    └── logs/              one file a component, and the audit log

All of it is readable by its owner only.
"""

from __future__ import annotations

import fcntl
import os
from dataclasses import replace
from pathlib import Path

import msgspec

from kubeocean.errors import LocalError
from kubeocean.local import accounts, components
from kubeocean.local.components import Plan
from kubeocean.local.files import private_directory, write_private
from kubeocean.local.pki import Authority, Identity, ServiceAccountKeys

__all__ = ["Ports", "RootLock", "load_ports", "move_server", "prepare", "save_ports"]


class Ports(msgspec.Struct, frozen=True):
    """What the next start on the same root has to know; 0 is none yet."""

    api: int = 0
    etcd: int = 0
    etcd_peer: int = 0


class RootLock:
    """One program at a time works on a root."""

    def __init__(self, root: Path) -> None:
        self._path = root / "lock"
        self._handle = -1

    def acquire(self) -> None:
        """:raises LocalError: another program has it."""
        handle = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.read(handle, 32).decode("ascii", "replace").strip() or "unknown"
            os.close(handle)
            raise LocalError(
                f"the cluster in {self._path.parent} runs already (process {holder})"
            ) from None
        os.ftruncate(handle, 0)
        os.write(handle, str(os.getpid()).encode())
        self._handle = handle

    def release(self) -> None:
        """Closing the file gives the lock up; the end of the program would, too."""
        if self._handle >= 0:
            os.close(self._handle)
            self._handle = -1


def load_ports(root: Path) -> Ports | None:
    """Those of the last start, if there was one."""
    path = root / "ports.json"
    try:
        return msgspec.json.decode(path.read_bytes(), type=Ports)
    except FileNotFoundError:
        return None
    except msgspec.DecodeError as error:
        raise LocalError(f"could not read {path}: {error}; remove it to choose new ports") from None


def save_ports(plan: Plan) -> None:
    """Keep the ports of this plan for the next start."""
    ports = Ports(plan.port, plan.etcd_port, plan.etcd_peer_port)
    write_private(plan.root / "ports.json", msgspec.json.encode(ports))


def prepare(plan: Plan) -> Authority:
    """Write all that the components read, keeping the certificates that still fit; the CA."""
    for path in (plan.pki, plan.config, plan.logs, plan.users):
        private_directory(path)
    signers = {
        name: Authority.ensure(plan.pki, name, common_name=common_name)
        for name, common_name in components.authorities(plan).items()
    }
    ServiceAccountKeys.ensure(plan.pki)
    issued: dict[str, Identity] = {}
    for name, (signer, subject) in components.identities(plan).items():
        issued[name] = signers[signer].ensure_issued(plan.pki, name, subject)
    ca = signers["ca"].certificate
    for user, path in (
        ("admin", plan.admin_kubeconfig),
        ("kube-controller-manager", plan.kubeconfig("kube-controller-manager")),
        ("kube-scheduler", plan.kubeconfig("kube-scheduler")),
    ):
        write_private(
            path,
            accounts.kubeconfig(plan.name, plan.server, ca, user=user, credential=issued[user]),
        )
    write_private(plan.config / "audit-policy.json", components.audit_policy())
    write_private(plan.config / "kube-scheduler.yaml", components.scheduler_config(plan))
    return signers["ca"]


def move_server(plan: Plan, old_port: int) -> None:
    """Let the users' kubeconfigs follow the API server from another port."""
    old, new = replace(plan, port=old_port).server.encode(), plan.server.encode()
    for path in plan.users.glob("*.kubeconfig"):
        write_private(path, path.read_bytes().replace(old, new))
