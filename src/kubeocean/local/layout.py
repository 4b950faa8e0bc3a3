"""Layout: the files of a local cluster on disk, and the lock of their directory.

    root/
    ├── lock               held while the cluster runs
    ├── ports.json         the same ports at the next start
    ├── admin.kubeconfig   users/*.kubeconfig
    ├── pki/  config/      files that the components read
    ├── etcd/              the data
    └── logs/              one file a component, and the audit log

All files are readable by their owner only.
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import msgspec

from kubeocean.errors import LocalError
from kubeocean.local import accounts, components
from kubeocean.local.components import ControlPlanePlan, Ports
from kubeocean.local.files import private_directory, try_lock, write_private
from kubeocean.local.pki import LocalAuthority, LocalIdentity, ServiceAccountKeys

__all__ = ["RootLock", "load_ports", "move_server", "prepare", "save_ports"]


class RootLock:
    """Lock that lets one program at a time use the root directory of a cluster."""

    def __init__(self, root: Path) -> None:
        self._path = root / "lock"
        self._handle = -1

    def acquire(self) -> None:
        """Lock the directory for this process.

        :raises LocalError: another process has locked the directory.
        """
        handle = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600)
        if not try_lock(handle):
            holder = os.read(handle, 32).decode("ascii", "replace").strip() or "unknown"
            os.close(handle)
            raise LocalError(
                f"the cluster in {self._path.parent} is already running (process {holder})"
            )
        os.ftruncate(handle, 0)
        os.write(handle, str(os.getpid()).encode())
        self._handle = handle

    def release(self) -> None:
        """Release the lock by closing its file; the end of the program would release it, too."""
        if self._handle >= 0:
            os.close(self._handle)
            self._handle = -1


def load_ports(root: Path) -> Ports:
    """Return the ports of a cluster's last start; all 0 if there was none."""
    path = root / "ports.json"
    try:
        return Ports(**msgspec.json.decode(path.read_bytes(), type=dict[str, int]))
    except FileNotFoundError:
        return Ports()
    except (ValueError, TypeError) as error:
        raise LocalError(f"could not read {path}: {error}; remove it to choose new ports") from None


def save_ports(plan: ControlPlanePlan) -> None:
    """Write the ports of this plan to `ports.json`, for the next start."""
    write_private(plan.root / "ports.json", msgspec.json.encode(plan.ports._asdict()))


def prepare(plan: ControlPlanePlan) -> LocalAuthority:
    """Write all files that the components read; return the cluster's certificate authority.

    Certificates that are still valid for their subjects are kept.
    """
    for path in (plan.pki, plan.config, plan.logs, plan.users):
        private_directory(path)
    signers = {
        name: LocalAuthority.ensure(plan.pki, name, common_name=common_name)
        for name, common_name in components.authorities(plan).items()
    }
    ServiceAccountKeys.ensure(plan.pki)
    issued: dict[str, LocalIdentity] = {}
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


def move_server(plan: ControlPlanePlan, old: Ports) -> None:
    """Change the API server's URL in the users' kubeconfigs after a change of its port."""
    before, now = replace(plan, ports=old).server.encode(), plan.server.encode()
    for path in plan.users.glob("*.kubeconfig"):
        write_private(path, path.read_bytes().replace(before, now))
