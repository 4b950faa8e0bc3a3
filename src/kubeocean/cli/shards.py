"""`kubeocean shards`: shows the owners of a ring's shards, and moves shards by hand."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from inspect import Parameter, Signature, signature
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias, get_type_hints

import typer

from kubeocean.cli._clusters import ContextOption, KubeconfigOption, reach
from kubeocean.cli._output import FormatOption, OutputFormat, print_document
from kubeocean.cli._run import run

if TYPE_CHECKING:
    from kubeocean.runtime.client import Client
    from kubeocean.sharding.admin import RingAdmin, RingState
    from kubeocean.sharding.admission import Guarded
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
    "switch",
    "unfreeze",
    "unpin",
]

shards = typer.Typer(
    name="shards",
    help="Show the owners of shards, and move shards by hand.",
    no_args_is_help=True,
)

NamespaceOption = Annotated[
    str,
    typer.Option(
        "--namespace", "-n", metavar="NAMESPACE", help="Namespace of the ring.", show_default="all"
    ),
]
RingOption = Annotated[
    str,
    typer.Option(
        "--ring",
        metavar="RING",
        help="Name of the ring (replicas that share the work); needed if there are several.",
    ),
]
SlotsArgument = Annotated[
    str, typer.Argument(metavar="SHARDS", help="Numbers of shards, such as 7 or 0-15,32.")
]
ReplicaArgument = Annotated[
    str, typer.Argument(metavar="REPLICA", help="Name or ID of the replica.")
]
_YES = typer.Option("--yes", help="Confirm that no process of the owner runs any more.")


@dataclass(frozen=True, slots=True)
class _RingReference:
    """Reference to a ring of replicas, and the client of the cluster with its objects."""

    kubeconfig: str
    context: str
    namespace: str
    ring: str

    def run(self, work: Callable[[RingAdmin], Awaitable[None]]) -> None:
        async def connected() -> None:
            from kubeocean.runtime.client import Client
            from kubeocean.runtime.transport import HttpTransport

            client = Client(HttpTransport(reach(self.kubeconfig, self.context)))
            try:
                await work(await self._find(client))
            finally:
                await client.close()

        run(connected)

    async def _find(self, client: Client) -> RingAdmin:
        from kubeocean.errors import ConfigError
        from kubeocean.sharding.admin import RingAdmin, find_rings
        from kubeocean.sharding.names import Names

        rings = await find_rings(client, Names(self.ring or "any"), namespace=self.namespace)
        matching = [(namespace, ring) for namespace, ring in rings if self.ring in ("", ring)]
        known = ", ".join(f"{namespace}/{ring}" for namespace, ring in matching or rings)
        if self.ring and not matching:
            message = f"there is no such ring; there are: {known or 'none'}"
            raise ConfigError(message, field="--ring", value=self.ring)
        if not matching:
            where = f"namespace {self.namespace}" if self.namespace else "any namespace"
            raise ConfigError(f"there is no ring: no Lease of a sharded program is in {where}")
        if len(matching) > 1:
            field = "--namespace" if self.ring else "--ring"
            raise ConfigError(f"must name one of {known}", field=field)
        namespace, ring = matching[0]
        return RingAdmin(client, Names(ring), namespace=namespace)


def _options(
    kubeconfig: KubeconfigOption = "",
    context: ContextOption = "",
    namespace: NamespaceOption = "",
    ring: RingOption = "",
) -> _RingReference:
    """Declare the options that all commands share."""
    return _RingReference(kubeconfig, context, namespace, ring)


def _table_command(decide: Callable[..., _Change]) -> Callable[..., None]:
    """Return the command that applies the change of `decide` to the shard table of a ring."""
    own, shared = _parameters(decide), _parameters(_options)

    def command(**values: Any) -> None:
        change = decide(**{name: values[name] for name in own})
        _options(**{name: values[name] for name in shared}).run(_changing(change))

    command.__name__, command.__doc__ = decide.__name__, decide.__doc__
    # Typer reads the annotations and the signature.
    parameters = {**own, **shared}
    command.__annotations__ = {name: each.annotation for name, each in parameters.items()}
    command.__dict__["__signature__"] = Signature(list(parameters.values()))
    return command


def _parameters(function: Callable[..., object]) -> dict[str, Parameter]:
    """Return the parameters as keyword-only parameters with resolved annotations."""
    names = {name: text for name, text in function.__annotations__.items() if name != "return"}
    types = get_type_hints(SimpleNamespace(__annotations__=names), globals(), include_extras=True)
    return {
        name: each.replace(annotation=types[name], kind=Parameter.KEYWORD_ONLY)
        for name, each in signature(function).parameters.items()
    }


@shards.command("list")
def list_(
    kubeconfig: KubeconfigOption = "",
    context: ContextOption = "",
    namespace: NamespaceOption = "",
    ring: RingOption = "",
    output: FormatOption = OutputFormat.TEXT,
) -> None:
    """List the replicas of a ring and their shards."""

    async def work(admin: RingAdmin) -> None:
        state = await admin.state()
        if output is not OutputFormat.TEXT:
            print_document(_document(admin, state), output)
        else:
            _show(admin, state)

    _RingReference(kubeconfig, context, namespace, ring).run(work)


@shards.command()
def owner(
    key: Annotated[
        str,
        typer.Argument(
            metavar="KEY", help="Key of an object (namespace/name), or number of a shard."
        ),
    ],
    config: Annotated[
        Path | None,
        typer.Option(
            "--config",
            metavar="FILE",
            help="Path of the replicas' configuration; needed if its algorithm is not `slots`.",
        ),
    ] = None,
    kubeconfig: KubeconfigOption = "",
    context: ContextOption = "",
    namespace: NamespaceOption = "",
    ring: RingOption = "",
    output: FormatOption = OutputFormat.TEXT,
) -> None:
    """Print the shard of a key, and the replica that owns the shard."""

    async def work(admin: RingAdmin) -> None:
        from kubeocean.errors import printable
        from kubeocean.sharding.config import load

        table = (await admin.state()).table
        settings = load({"CONFIG_FILE": str(config)} if config else {})
        slot = int(key) if key.isdecimal() else settings.algorithm().get_shard(key, table.slots)
        _check_slot(slot, table)
        entry = table.entries[slot]
        document = {
            "key": key,
            "shard": slot,
            "owner": entry.owner,
            "state": entry.state.value,
            "to": entry.to,
            "epoch": entry.epoch,
        }
        if output is not OutputFormat.TEXT:
            print_document(document, output)
            return
        target = f", moving to {entry.to}" if entry.to else ""
        line = f"{key}: shard {slot}, {entry.owner or 'no owner'}{target} (epoch {entry.epoch})"
        typer.echo(printable(line))

    _RingReference(kubeconfig, context, namespace, ring).run(work)


@shards.command()
@_table_command
def move(
    slots: SlotsArgument,
    to: Annotated[
        str, typer.Option("--to", metavar="REPLICA", help="Name or ID of the new owner.")
    ],
) -> _Change:
    """Move shards to a replica; their owners finish their work first.

    A later rebalance may move them again; `freeze` prevents that.
    """
    from kubeocean.sharding import table_operations

    return lambda state: table_operations.move(state.table, _slots(slots), state.member(to))


@shards.command()
@_table_command
def pin(
    slots: SlotsArgument,
    to: Annotated[
        str,
        typer.Option(
            "--to", metavar="REPLICA", help="Name or ID of the replica that shall keep the shards."
        ),
    ],
) -> _Change:
    """Assign shards to a replica whenever that replica runs."""
    from kubeocean.sharding import table_operations

    return lambda state: table_operations.pin(state.table, _slots(slots), to)


@shards.command()
@_table_command
def unpin(slots: SlotsArgument) -> _Change:
    """Remove the pins of shards, so that the ring balances these again."""
    from kubeocean.sharding import table_operations

    return lambda state: table_operations.unpin(state.table, _slots(slots))


@shards.command()
@_table_command
def drain(
    replica: ReplicaArgument,
    undo: Annotated[
        bool, typer.Option("--undo", help="Allow the replica to own shards again.")
    ] = False,
) -> _Change:
    """Move all shards of a replica to others, and assign no shards to that replica."""
    from kubeocean.sharding import table_operations

    def change(state: RingState) -> Table:
        if undo:
            return table_operations.undrain(state.table, replica)
        state.member(replica)
        return table_operations.drain(state.table, replica)

    return change


@shards.command()
@_table_command
def freeze() -> _Change:
    """Stop rebalancing; shards move only by hand or when a replica is dead."""
    from kubeocean.sharding import table_operations

    return lambda state: table_operations.freeze(state.table)


@shards.command()
@_table_command
def unfreeze() -> _Change:
    """Resume rebalancing of a ring that `freeze` has stopped."""
    from kubeocean.sharding import table_operations

    return lambda state: table_operations.freeze(state.table, on=False)


@shards.command()
@_table_command
def rollback(
    epoch: Annotated[
        int,
        typer.Argument(
            metavar="EPOCH",
            help="Epoch of an earlier assignment, as `kubeocean shards list` prints it.",
        ),
    ],
) -> _Change:
    """Restore an earlier assignment as far as its replicas still run, and freeze the ring."""
    from kubeocean.sharding import table_operations

    return lambda state: table_operations.rollback(state.table, epoch, state.living)


@shards.command()
def switch(
    config: Annotated[
        Path | None,
        typer.Option("--config", metavar="FILE", help="Path of the new configuration."),
    ] = None,
    back: Annotated[
        bool, typer.Option("--back", help="Return to the configuration before the present one.")
    ] = False,
    kubeconfig: KubeconfigOption = "",
    context: ContextOption = "",
    namespace: NamespaceOption = "",
    ring: RingOption = "",
) -> None:
    """Change the configuration that all replicas must share; stop all replicas before.

    Replicas with another number of shards, algorithm, filter, domain or election than the ring
    refuse to start. Stop all replicas, run this command, and start them with the new configuration.
    """

    async def work(admin: RingAdmin) -> None:
        from kubeocean.errors import ConfigError
        from kubeocean.sharding.config import load

        if (config is None) != back:
            raise ConfigError("give either --config or --back")
        if back:
            state = await admin.switch_back()
        else:
            state = await admin.switch(load({"CONFIG_FILE": str(config)}))
        typer.echo(f"{admin.names.ring}: epoch {state.table.epoch}, start the replicas with")
        for field, value in state.identity.items():
            typer.echo(f"  {field}: {value}")

    _RingReference(kubeconfig, context, namespace, ring).run(work)


@shards.command()
@_table_command
def release(slots: SlotsArgument, yes: Annotated[bool, _YES] = False) -> _Change:
    """Take shards from an owner that is known to be dead, without waiting for its confirmation."""
    from kubeocean.errors import ConfigError
    from kubeocean.sharding import table_operations

    def change(state: RingState) -> Table:
        if not yes:
            raise ConfigError(
                "is required: confirm that no process of the owner runs, since two replicas would"
                " reconcile the objects of these shards otherwise",
                field="--yes",
            )
        return table_operations.release(state.table, _slots(slots))

    return change


@shards.command()
def policy(
    guarded: Annotated[
        list[str],
        typer.Argument(
            metavar="RESOURCE...",
            help="Resources to guard, such as v1/configmaps or apps/v1/deployments.",
        ),
    ],
    user: Annotated[
        list[str] | None, typer.Option(help="User name of the replicas (repeatable).")
    ] = None,
    group: Annotated[
        list[str] | None, typer.Option(help="Group of the replicas (repeatable).")
    ] = None,
    namespace: NamespaceOption = "default",
    ring: RingOption = "sharded-controller",
) -> None:
    """Print the admission policy with which the API server refuses writes of a stale owner."""

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


def _guarded(text: str) -> Guarded:
    from kubeocean.errors import ConfigError
    from kubeocean.sharding.admission import Guarded

    *group, version, plural = text.split("/") if "/" in text else ("", "")
    if len(group) > 1 or not version or not plural:
        raise ConfigError("must be version/plural or group/version/plural", value=text)
    return Guarded(group[0] if group else "", version, plural)


def _changing(change: _Change) -> Callable[[RingAdmin], Awaitable[None]]:
    async def work(admin: RingAdmin) -> None:
        before, after = await admin.change(change)
        moving = sum(
            old.heir != new.heir for old, new in zip(before.entries, after.entries, strict=True)
        )
        frozen = ", frozen" if after.frozen else ""
        typer.echo(f"{admin.names.ring}: epoch {after.epoch}, {moving} shards move{frozen}")

    return work


def _slots(text: str) -> frozenset[int]:
    from kubeocean.sharding.slots import decode_slots

    return decode_slots(text)


def _check_slot(slot: int, table: Table) -> None:
    from kubeocean.errors import ConfigError

    if not 0 <= slot < table.slots:
        raise ConfigError(f"must be from 0 to {table.slots - 1}", field="shard", value=slot)


def _document(admin: RingAdmin, state: RingState) -> dict[str, object]:
    from kubeocean.runtime.clock import RealClock
    from kubeocean.sharding.slots import encode_slots

    table = state.table
    going, now = table.draining(), RealClock().now()
    replicas = [
        {
            "id": each.record.id,
            "state": each.record.state.value,
            "status": each.status(now),
            "released": each.record.released,
            "capacity": each.record.capacity,
            "template": each.record.template,
            "address": each.record.address,
            "renewed": each.renewed.isoformat() if each.renewed else None,
            "shards": encode_slots(table.owned_by(each.record.id)),
            "count": len(table.owned_by(each.record.id)),
            "going": encode_slots(s for s, e in going.items() if e.owner == each.record.id),
            "coming": encode_slots(s for s, e in going.items() if e.to == each.record.id),
            "load": round(sum(each.record.loads.values()), 4),
            "controllers": list(each.record.controllers),
            "unplaced": each.record.unplaced,
        }
        for each in state.members
    ]
    present = {each.record.id for each in state.members}
    return {
        "ring": admin.names.ring,
        "namespace": admin.namespace,
        "epoch": table.epoch,
        "slots": table.slots,
        "frozen": table.frozen,
        "written": state.written,
        "configuration": dict(state.identity),
        "earlierConfigurations": [
            {"configuration": dict(each.identity), "until": each.until} for each in state.earlier
        ],
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


def _show(admin: RingAdmin, state: RingState) -> None:
    from kubeocean.errors import printable
    from kubeocean.runtime.clock import RealClock

    table = state.table
    frozen = ", frozen" if table.frozen else ""
    heading = (
        f"{admin.namespace}/{admin.names.ring}: {table.slots} shards, "
        f"epoch {table.epoch}{frozen}, assigner {state.assigner or 'none'}"
    )
    typer.echo(printable(heading))
    rows = [("REPLICA", "STATE", "SHARDS", "GOING", "COMING", "LOAD", "RENEWED")]
    going, now = table.draining().values(), RealClock().now()
    for each in state.members:
        id_ = each.record.id
        state_name = each.status(now)
        drained = " (drained)" if table.names_member(table.drained, id_) else ""
        rows.append(
            (
                id_,
                state_name + drained,
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
        typer.echo(printable(f"  {line.rstrip()}"))
    for each in state.members:
        if each.record.unplaced and not each.record.released:
            line = (
                f"objects that {each.record.id} does not work on, because it cannot compute their "
                f"shard: {each.record.unplaced} (see its log)"
            )
            typer.echo(printable(line))
    if table.history:
        epochs = ", ".join(str(past.epoch) for past in table.history)
        typer.echo(f"earlier assignments (rollback): {epochs}")
