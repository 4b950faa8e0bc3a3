"""`kubeocean shards`: who owns what in a ring, and how to put it right by hand."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kubeocean.cli.output import Format, FormatOption, print_json
from kubeocean.cli.running import run

if TYPE_CHECKING:
    from kubeocean.runtime.client import Client
    from kubeocean.sharding.admission import Guarded
    from kubeocean.sharding.overseer import Overseer, RingState
    from kubeocean.sharding.table import Table

__all__ = [
    "drain",
    "freeze",
    "list_",
    "move",
    "owner",
    "pin",
    "policy",
    "release",
    "rollback",
    "shards",
    "unfreeze",
    "unpin",
]

shards = typer.Typer(
    name="shards",
    help="Who owns which shard, and how to put it right by hand.",
    no_args_is_help=True,
)

KubeconfigOption = Annotated[
    str,
    typer.Option(
        "--kubeconfig",
        metavar="FILE",
        envvar="KUBECONFIG",
        help="How to reach the cluster.",
        show_default="~/.kube/config",
    ),
]
ContextOption = Annotated[
    str | None, typer.Option("--context", metavar="CONTEXT", help="Which cluster of the file.")
]
NamespaceOption = Annotated[
    str,
    typer.Option(
        "--namespace", "-n", metavar="NAMESPACE", help="Where the ring is.", show_default="all"
    ),
]
RingOption = Annotated[
    str,
    typer.Option("--ring", metavar="RING", help="Which ring, if there are several."),
]
SlotsArgument = Annotated[str, typer.Argument(metavar="SHARDS", help="Such as 7 or 0-15,32.")]
ReplicaArgument = Annotated[str, typer.Argument(metavar="REPLICA", help="Its name or its id.")]
_YES = typer.Option("--yes", help="Do it: no process of its owner runs any more.")


@dataclass(frozen=True, slots=True)
class _Where:
    """The ring that a command is about, and how to reach it."""

    kubeconfig: str
    context: str | None
    namespace: str
    ring: str

    def run(self, work: Callable[[Overseer], Awaitable[None]]) -> None:
        async def reach() -> None:
            from kubeocean.runtime.client import connect

            known = self.kubeconfig or str(Path.home() / ".kube" / "config")
            client = connect(known.split(os.pathsep)[0], context=self.context, allow_exec=True)
            try:
                await work(await self._find(client))
            finally:
                await client.close()

        run(reach)

    async def _find(self, client: Client) -> Overseer:
        from kubeocean.errors import ConfigError
        from kubeocean.sharding.names import Names
        from kubeocean.sharding.overseer import Overseer, find_rings

        rings = await find_rings(client, Names(self.ring or "any"), namespace=self.namespace)
        known = ", ".join(f"{namespace}/{ring}" for ring, namespace in sorted(rings.items()))
        if self.ring and self.ring not in rings:
            message = f"there is no such ring; there are: {known or 'none'}"
            raise ConfigError(message, field="--ring", value=self.ring)
        if not self.ring and len(rings) != 1:
            problem = f"say which of {known}" if rings else "there is no ring"
            raise ConfigError(problem, field="--ring")
        ring = self.ring or next(iter(rings))
        return Overseer(client, Names(ring), namespace=rings[ring])


# Looking


@shards.command("list")
def list_(
    kubeconfig: KubeconfigOption = "",
    context: ContextOption = None,
    namespace: NamespaceOption = "",
    ring: RingOption = "",
    output: FormatOption = Format.TEXT,
) -> None:
    """Show the replicas of a ring and their shards."""

    async def work(overseer: Overseer) -> None:
        state = await overseer.state()
        if output is Format.JSON:
            print_json(_document(overseer, state))
        else:
            _show(overseer, state)

    _Where(kubeconfig, context, namespace, ring).run(work)


@shards.command()
def owner(
    key: Annotated[
        str, typer.Argument(metavar="KEY", help="namespace/name, or a number of a shard.")
    ],
    config: Annotated[
        Path | None,
        typer.Option(
            "--config",
            metavar="FILE",
            help="The replicas' configuration, if it names another algorithm than `slots`.",
        ),
    ] = None,
    kubeconfig: KubeconfigOption = "",
    context: ContextOption = None,
    namespace: NamespaceOption = "",
    ring: RingOption = "",
    output: FormatOption = Format.TEXT,
) -> None:
    """Say which shard a key is in, and who works on it."""

    async def work(overseer: Overseer) -> None:
        from kubeocean.sharding.config import load

        table = (await overseer.state()).table
        settings = load({"CONFIG_FILE": str(config)} if config else {})
        slot = int(key) if key.isdecimal() else settings.algorithm().get_shard(key, table.slots)
        _check_slot(slot, table)
        entry = table.entries[slot]
        found = {
            "key": key,
            "shard": slot,
            "owner": entry.owner,
            "state": entry.state.value,
            "to": entry.to,
            "epoch": entry.epoch,
        }
        if output is Format.JSON:
            print_json(found)
            return
        going = f", on its way to {entry.to}" if entry.to else ""
        typer.echo(f"{key}: shard {slot}, {entry.owner or 'nobody'}{going} (epoch {entry.epoch})")

    _Where(kubeconfig, context, namespace, ring).run(work)


# Steering


@shards.command()
def move(
    slots: SlotsArgument,
    to: Annotated[str, typer.Option("--to", metavar="REPLICA", help="Who shall have them.")],
    kubeconfig: KubeconfigOption = "",
    context: ContextOption = None,
    namespace: NamespaceOption = "",
    ring: RingOption = "",
) -> None:
    """Hand shards over to a replica; their owners end their work first.

    They stay there until the next rebalance needs them elsewhere; `freeze` keeps it off.
    """

    def change(state: RingState) -> Table:
        from kubeocean.sharding import operations

        return operations.move(state.table, _slots(slots), state.member(to))

    _Where(kubeconfig, context, namespace, ring).run(_changing(change))


@shards.command()
def pin(
    slots: SlotsArgument,
    to: Annotated[str, typer.Option("--to", metavar="REPLICA", help="Where they shall stay.")],
    kubeconfig: KubeconfigOption = "",
    context: ContextOption = None,
    namespace: NamespaceOption = "",
    ring: RingOption = "",
) -> None:
    """Keep shards at a replica whenever it is there."""

    def change(state: RingState) -> Table:
        from kubeocean.sharding import operations

        return operations.pin(state.table, _slots(slots), to)

    _Where(kubeconfig, context, namespace, ring).run(_changing(change))


@shards.command()
def unpin(
    slots: SlotsArgument,
    kubeconfig: KubeconfigOption = "",
    context: ContextOption = None,
    namespace: NamespaceOption = "",
    ring: RingOption = "",
) -> None:
    """Let pinned shards go wherever they are best."""

    def change(state: RingState) -> Table:
        from kubeocean.sharding import operations

        return operations.unpin(state.table, _slots(slots))

    _Where(kubeconfig, context, namespace, ring).run(_changing(change))


@shards.command()
def drain(
    replica: ReplicaArgument,
    undo: Annotated[bool, typer.Option("--undo", help="Let it have shards again.")] = False,
    kubeconfig: KubeconfigOption = "",
    context: ContextOption = None,
    namespace: NamespaceOption = "",
    ring: RingOption = "",
) -> None:
    """Give all shards of a replica to others, and no more to it."""

    def change(state: RingState) -> Table:
        from kubeocean.sharding import operations

        if undo:
            return operations.undrain(state.table, replica)
        state.member(replica)
        return operations.drain(state.table, replica)

    _Where(kubeconfig, context, namespace, ring).run(_changing(change))


@shards.command()
def freeze(
    kubeconfig: KubeconfigOption = "",
    context: ContextOption = None,
    namespace: NamespaceOption = "",
    ring: RingOption = "",
) -> None:
    """Move nothing any more, but by hand or because a replica is dead."""

    def change(state: RingState) -> Table:
        from kubeocean.sharding import operations

        return operations.freeze(state.table)

    _Where(kubeconfig, context, namespace, ring).run(_changing(change))


@shards.command()
def unfreeze(
    kubeconfig: KubeconfigOption = "",
    context: ContextOption = None,
    namespace: NamespaceOption = "",
    ring: RingOption = "",
) -> None:
    """Let the ring balance itself again."""

    def change(state: RingState) -> Table:
        from kubeocean.sharding import operations

        return operations.freeze(state.table, on=False)

    _Where(kubeconfig, context, namespace, ring).run(_changing(change))


@shards.command()
def rollback(
    epoch: Annotated[int, typer.Argument(metavar="EPOCH", help="As `list` shows them.")],
    kubeconfig: KubeconfigOption = "",
    context: ContextOption = None,
    namespace: NamespaceOption = "",
    ring: RingOption = "",
) -> None:
    """Go back to an earlier assignment, as far as its replicas live, and freeze it."""

    def change(state: RingState) -> Table:
        from kubeocean.sharding import operations

        return operations.rollback(state.table, epoch, state.living)

    _Where(kubeconfig, context, namespace, ring).run(_changing(change))


@shards.command()
def release(
    slots: SlotsArgument,
    yes: Annotated[bool, _YES] = False,
    kubeconfig: KubeconfigOption = "",
    context: ContextOption = None,
    namespace: NamespaceOption = "",
    ring: RingOption = "",
) -> None:
    """Take shards from an owner that is known to be dead, without waiting for its word."""

    def change(state: RingState) -> Table:
        from kubeocean.errors import ConfigError
        from kubeocean.sharding import operations

        if not yes:
            raise ConfigError(
                "is needed: if a process of the owner still runs, two would work on these shards",
                field="--yes",
            )
        return operations.release(state.table, _slots(slots))

    _Where(kubeconfig, context, namespace, ring).run(_changing(change))


@shards.command()
def policy(
    guarded: Annotated[
        list[str],
        typer.Argument(metavar="RESOURCE...", help="Such as v1/configmaps or apps/v1/deployments."),
    ],
    user: Annotated[list[str] | None, typer.Option(help="A user of the replicas.")] = None,
    group: Annotated[list[str] | None, typer.Option(help="A group of theirs.")] = None,
    namespace: NamespaceOption = "default",
    ring: RingOption = "sharded-controller",
) -> None:
    """Print the admission policy that lets the API server refuse a stale owner."""

    async def work() -> None:
        import yaml

        from kubeocean.sharding.admission import admission_objects
        from kubeocean.sharding.names import Names

        objects = admission_objects(
            Names(ring),
            namespace=namespace,
            guarded=[_guarded(each) for each in guarded],
            users=user or [],
            groups=group or [],
        )
        typer.echo(yaml.safe_dump_all(objects, sort_keys=False), nl=False)

    run(work)


# In one place


def _guarded(text: str) -> Guarded:
    from kubeocean.errors import ConfigError
    from kubeocean.sharding.admission import Guarded

    *group, version, plural = text.split("/") if "/" in text else ("", "")
    if len(group) > 1 or not version or not plural:
        raise ConfigError("must be version/plural or group/version/plural", value=text)
    return Guarded(group[0] if group else "", version, plural)


def _changing(change: Callable[[RingState], Table]) -> Callable[[Overseer], Awaitable[None]]:
    async def work(overseer: Overseer) -> None:
        before, after = await overseer.change(change)
        asked = sum(
            old.heir != new.heir for old, new in zip(before.entries, after.entries, strict=True)
        )
        frozen = ", frozen" if after.frozen else ""
        typer.echo(f"{overseer.names.ring}: epoch {after.epoch}, {asked} shards move{frozen}")

    return work


def _slots(text: str) -> frozenset[int]:
    from kubeocean.sharding.slotsets import decode_slots

    return decode_slots(text)


def _check_slot(slot: int, table: Table) -> None:
    from kubeocean.errors import ConfigError

    if not 0 <= slot < table.slots:
        raise ConfigError(f"must be from 0 to {table.slots - 1}", field="shard", value=slot)


def _document(overseer: Overseer, state: RingState) -> dict[str, object]:
    from kubeocean.sharding.slotsets import encode_slots

    table = state.table
    going = table.draining()
    replicas = [
        {
            "id": each.record.id,
            "state": each.record.state.value,
            "released": each.record.released,
            "capacity": each.record.capacity,
            "template": each.record.template,
            "renewed": each.renewed.isoformat() if each.renewed else None,
            "shards": encode_slots(table.owned_by(each.record.id)),
            "count": len(table.owned_by(each.record.id)),
            "going": encode_slots(s for s, e in going.items() if e.owner == each.record.id),
            "coming": encode_slots(s for s, e in going.items() if e.to == each.record.id),
            "load": round(sum(each.record.loads.values()), 4),
        }
        for each in state.members
    ]
    present = {each.record.id for each in state.members}
    return {
        "ring": overseer.names.ring,
        "namespace": overseer.namespace,
        "epoch": table.epoch,
        "slots": table.slots,
        "frozen": table.frozen,
        "assigner": state.assigner,
        "drained": sorted(table.drained),
        "pins": {str(slot): name for slot, name in sorted(table.pins.items())},
        "unowned": encode_slots(s for s, e in enumerate(table.entries) if not e.owner),
        "absent": {
            gone: encode_slots(table.owned_by(gone)) for gone in sorted(table.owners - present)
        },
        "replicas": replicas,
        "history": [past.epoch for past in table.history],
    }


def _show(overseer: Overseer, state: RingState) -> None:
    table = state.table
    frozen = ", frozen" if table.frozen else ""
    typer.echo(
        f"{overseer.namespace}/{overseer.names.ring}: {table.slots} shards, "
        f"epoch {table.epoch}{frozen}, assigner {state.assigner or 'none'}"
    )
    rows = [("REPLICA", "STATE", "SHARDS", "GOING", "COMING", "LOAD", "RENEWED")]
    going = table.draining().values()
    for each in state.members:
        id_ = each.record.id
        said = "Left" if each.record.released else each.record.state.value
        drained = " (drained)" if table.says(table.drained, id_) else ""
        rows.append(
            (
                id_,
                said + drained,
                str(len(table.owned_by(id_))),
                str(sum(entry.owner == id_ for entry in going)),
                str(sum(entry.to == id_ for entry in going)),
                f"{sum(each.record.loads.values()):.3f}",
                each.renewed.isoformat(timespec="seconds") if each.renewed else "never",
            )
        )
    rows += [
        (gone, "Absent", str(len(table.owned_by(gone))), "", "", "", "")
        for gone in sorted(table.owners - {each.record.id for each in state.members})
    ]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        line = "   ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True))
        typer.echo(f"  {line.rstrip()}")
    if table.history:
        epochs = ", ".join(str(past.epoch) for past in table.history)
        typer.echo(f"earlier assignments (rollback): {epochs}")
