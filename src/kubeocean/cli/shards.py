"""`kubeocean shards`: who owns what in a ring, and how to put it right by hand."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from inspect import Parameter, Signature, signature
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias, get_type_hints

import typer

from kubeocean.cli.output import Format, FormatOption, print_document
from kubeocean.cli.running import run

if TYPE_CHECKING:
    from kubeocean.runtime.client import Client
    from kubeocean.sharding.admission import Guarded
    from kubeocean.sharding.overseer import Overseer, RingState
    from kubeocean.sharding.table import Table

    _Change: TypeAlias = Callable[[RingState], Table]

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
        meant = [each for each in rings if self.ring in ("", each[1])]
        known = ", ".join(f"{namespace}/{ring}" for namespace, ring in meant or rings)
        if self.ring and not meant:
            message = f"there is no such ring; there are: {known or 'none'}"
            raise ConfigError(message, field="--ring", value=self.ring)
        if not meant:
            where = f"namespace {self.namespace}" if self.namespace else "any namespace"
            raise ConfigError(f"there is no ring: no Lease of a sharded program is in {where}")
        if len(meant) > 1:
            field = "--namespace" if self.ring else "--ring"
            raise ConfigError(f"say which of {known}", field=field)
        namespace, ring = meant[0]
        return Overseer(client, Names(ring), namespace=namespace)


def _options(
    kubeconfig: KubeconfigOption = "",
    context: ContextOption = None,
    namespace: NamespaceOption = "",
    ring: RingOption = "",
) -> _Where:
    """What every command about a ring can be told."""
    return _Where(kubeconfig, context, namespace, ring)


def _steering(decide: Callable[..., _Change]) -> Callable[..., None]:
    """A command that makes the change which `decide` gives, on the ring that its user names."""
    asked, shared = (_parameters(each) for each in (decide, _options))

    def command(**given: Any) -> None:
        change = decide(**{name: given[name] for name in asked})
        _options(**{name: given[name] for name in shared}).run(_changing(change))

    command.__name__, command.__doc__ = decide.__name__, decide.__doc__
    # What typer reads
    every = {**asked, **shared}
    command.__annotations__ = {name: each.annotation for name, each in every.items()}
    command.__dict__["__signature__"] = Signature(list(every.values()))
    return command


def _parameters(function: Callable[..., object]) -> dict[str, Parameter]:
    """With types instead of their names; all of them by name."""
    names = {name: text for name, text in function.__annotations__.items() if name != "return"}
    types = get_type_hints(SimpleNamespace(__annotations__=names), globals(), include_extras=True)
    return {
        name: each.replace(annotation=types[name], kind=Parameter.KEYWORD_ONLY)
        for name, each in signature(function).parameters.items()
    }


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
        if output is not Format.TEXT:
            print_document(_document(overseer, state), output)
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
        if output is not Format.TEXT:
            print_document(found, output)
            return
        going = f", on its way to {entry.to}" if entry.to else ""
        typer.echo(f"{key}: shard {slot}, {entry.owner or 'nobody'}{going} (epoch {entry.epoch})")

    _Where(kubeconfig, context, namespace, ring).run(work)


# Steering


@shards.command()
@_steering
def move(
    slots: SlotsArgument,
    to: Annotated[str, typer.Option("--to", metavar="REPLICA", help="Who shall have them.")],
) -> _Change:
    """Hand shards over to a replica; their owners end their work first.

    They stay there until the next rebalance needs them elsewhere; `freeze` keeps it off.
    """
    from kubeocean.sharding import operations

    return lambda state: operations.move(state.table, _slots(slots), state.member(to))


@shards.command()
@_steering
def pin(
    slots: SlotsArgument,
    to: Annotated[str, typer.Option("--to", metavar="REPLICA", help="Where they shall stay.")],
) -> _Change:
    """Keep shards at a replica whenever it is there."""
    from kubeocean.sharding import operations

    return lambda state: operations.pin(state.table, _slots(slots), to)


@shards.command()
@_steering
def unpin(slots: SlotsArgument) -> _Change:
    """Let pinned shards go wherever they are best."""
    from kubeocean.sharding import operations

    return lambda state: operations.unpin(state.table, _slots(slots))


@shards.command()
@_steering
def drain(
    replica: ReplicaArgument,
    undo: Annotated[bool, typer.Option("--undo", help="Let it have shards again.")] = False,
) -> _Change:
    """Give all shards of a replica to others, and no more to it."""
    from kubeocean.sharding import operations

    def change(state: RingState) -> Table:
        if undo:
            return operations.undrain(state.table, replica)
        state.member(replica)
        return operations.drain(state.table, replica)

    return change


@shards.command()
@_steering
def freeze() -> _Change:
    """Move nothing any more, but by hand or because a replica is dead."""
    from kubeocean.sharding import operations

    return lambda state: operations.freeze(state.table)


@shards.command()
@_steering
def unfreeze() -> _Change:
    """Let the ring balance itself again."""
    from kubeocean.sharding import operations

    return lambda state: operations.freeze(state.table, on=False)


@shards.command()
@_steering
def rollback(
    epoch: Annotated[int, typer.Argument(metavar="EPOCH", help="As `list` shows them.")],
) -> _Change:
    """Go back to an earlier assignment, as far as its replicas live, and freeze it."""
    from kubeocean.sharding import operations

    return lambda state: operations.rollback(state.table, epoch, state.living)


@shards.command()
@_steering
def release(slots: SlotsArgument, yes: Annotated[bool, _YES] = False) -> _Change:
    """Take shards from an owner that is known to be dead, without waiting for its word."""
    from kubeocean.errors import ConfigError
    from kubeocean.sharding import operations

    def change(state: RingState) -> Table:
        if not yes:
            raise ConfigError(
                "is needed: if a process of the owner still runs, two would work on these shards",
                field="--yes",
            )
        return operations.release(state.table, _slots(slots))

    return change


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


def _changing(change: _Change) -> Callable[[Overseer], Awaitable[None]]:
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
