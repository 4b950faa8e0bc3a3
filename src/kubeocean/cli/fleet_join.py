"""`kubeocean fleet join`: makes a cluster a member of a fleet."""

from __future__ import annotations

from contextlib import AsyncExitStack
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from kubeocean.cli._clusters import (
    NOT_YET,
    ContextOption,
    DomainOption,
    ForceOption,
    TimeoutOption,
    WaitOption,
    applier,
    give_up,
    print_result,
    wait_until_done,
)
from kubeocean.cli._fleet import (
    HubContextOption,
    HubOption,
    hub_words,
    list_members,
    reach_hub,
    reach_member,
)
from kubeocean.cli._run import command_line, interruptible, run

if TYPE_CHECKING:
    from kubeocean.api.fleet.clusters import MemberCluster
    from kubeocean.install.apply import Applier
    from kubeocean.runtime.objects import Json

__all__ = ["join"]


def join(
    name: Annotated[str, typer.Argument(help="Name of the member, at most 50 characters.")],
    kubeconfig: Annotated[
        str,
        typer.Option(
            metavar="FILE", help="Path of an administrator's kubeconfig of the member cluster."
        ),
    ],
    context: ContextOption = "",
    hub_kubeconfig: HubOption = "",
    hub_context: HubContextOption = "",
    hub_url: Annotated[
        str,
        typer.Option(
            metavar="URL",
            help="URL at which the member reaches the hub.",
            show_default="that of an earlier join, else that of the hub's kubeconfig",
        ),
    ] = "",
    image: Annotated[
        str,
        typer.Option(
            help="Image of the agent.",
            show_default="that of this version, or an image of another repository that runs",
        ),
    ] = "",
    heartbeat: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=600,
            metavar="SECONDS",
            help="Time between heartbeats.",
            show_default="that of the member, at first 60",
        ),
    ] = None,
    agentless: Annotated[
        bool,
        typer.Option(
            "--agentless",
            help="Run no agent: the syncer of the binding NAME, which kubeocean join has created, "
            "serves the member with the credential of the binding.",
        ),
    ] = False,
    label_domain: DomainOption = "kubeocean.io",
    force_conflicts: ForceOption = False,
    wait: WaitOption = True,
    timeout: TimeoutOption = 300.0,
) -> None:
    """Admit a cluster to the fleet, and run the fleet's agent in it.

    With --agentless the hub is the computing cluster of a binding, and the credential of the
    binding is granted the right to apply objects of any kind in its worker. Without --agentless,
    running the command again renews the member's token, and keeps the values of options that are
    not given. Exit code 3: the member has not joined yet.
    """

    async def work() -> None:
        from kubeocean.errors import ConfigError
        from kubeocean.fleet.membership.plan import name_problem
        from kubeocean.install.agentless import AgentlessJoin, bound_member
        from kubeocean.install.fleet import (
            HubConnection,
            MemberOptions,
            join_problem,
            member_cluster,
            member_deployment,
            member_identity,
            member_objects,
            second_name_problem,
            token_secret,
        )
        from kubeocean.install.values import Values
        from kubeocean.process.flags import domain as parse_domain

        if problem := name_problem(name):
            raise ConfigError(problem, field="NAME", value=name)
        if agentless and (image or hub_url):
            option = "--image" if image else "--hub-url"
            raise ConfigError("has no effect with --agentless; leave it out", source=option)
        _check_url(hub_url)
        domain = parse_domain(label_domain, "--label-domain")
        see = command_line("explain", "member", name, *hub_words(hub_kubeconfig, hub_context))
        async with AsyncExitStack() as stack:
            connect = partial(applier, stack=stack, domain=domain, force=force_conflicts)
            hub_source = reach_hub(hub_kubeconfig, hub_context)
            hub = connect(hub_source, cluster="hub")
            member_source = reach_member(kubeconfig, context)
            member = connect(member_source, cluster="member")
            members = await list_members(hub.client)
            leaving = [each for each in members if each.name == name and each.deleting]
            if leaving and not agentless:
                await _await_leave(hub, leaving[0], timeout if wait else None)
            agent = await _agent(member)
            bound = await bound_member(hub, member, members, domain)
            if agentless:
                if problem := second_name_problem(name, members, agent, bound):
                    raise ConfigError(problem, field="NAME", value=name)
                access = member_source.current()
                joining = AgentlessJoin(name, hub, member, access, domain=domain)
                with interruptible(lambda: f"objects of {name} may be written in part"):
                    await joining.run(heartbeat, print_result)
                if wait:
                    await _wait(hub, name, timeout, see=see)
                    typer.echo(f"{name} has joined")
                return
            authority = (member_source.current().ca or b"").decode("utf-8", "replace")
            if problem := join_problem(name, members, agent, authority, bound):
                raise ConfigError(problem, field="NAME", value=name)
            given = MemberOptions(heartbeat, hub_url, image)
            options = given.with_present(name, members, agent, domain)
            assert options.heartbeat_s is not None
            values = Values(domain=domain, image=options.image)
            connection = HubConnection.from_access(name, hub_source.current(), options.hub_url)
            with interruptible(lambda: f"objects of {name} may be written in part"):
                body = member_cluster(name, heartbeat_s=options.heartbeat_s)
                result, stored = await hub.put(body)
                print_result("hub", body, result)
                identity = member_identity(name, domain, owner_uid=stored.uid)
                print_result("hub", identity, await hub.apply(identity))
                await member.apply_all(member_objects(domain), partial(print_result, "member"))
                token = await _token(hub, name)
                for body in (token_secret(token, domain), member_deployment(values, connection)):
                    print_result("member", body, await member.apply(body))
            if wait:
                await _wait(hub, name, timeout, see=see, agent=member)
                typer.echo(f"{name} has joined")

    run(work)


def _check_url(hub_url: str) -> None:
    """Check the URL of the hub before it is written into the member.

    :raises ConfigError: the URL is given, and is not one of an API server with TLS.
    """
    from kubeocean.errors import ConfigError
    from kubeocean.runtime.access import split_url

    if hub_url and ((parts := split_url(hub_url)) is None or parts.scheme != "https"):
        message = "must be a URL such as https://hub.example.com:6443"
        raise ConfigError(message, source="--hub-url", value=hub_url)


async def _await_leave(hub: Applier, leaving: MemberCluster, timeout: float | None) -> None:
    """Wait until an earlier member of this name has left; otherwise the new member would be removed
    with it.

    Exit with the code NOT_YET if it has not left in time.

    :raises ConfigError: there is no time to wait.
    """
    from kubeocean.api.fleet.clusters import MEMBER_CLUSTERS
    from kubeocean.errors import ConfigError, NotFound
    from kubeocean.install.wait import State

    name, message = leaving.name, "is leaving the fleet; join again when it has left"
    if timeout is None:
        raise ConfigError(message, field="NAME", value=name)

    async def read() -> State:
        try:
            present = await hub.client.get(MEMBER_CLUSTERS, name)
        except NotFound:
            return State("left", done=True)
        return State("leaves the fleet", done=present.uid != leaving.uid)

    with interruptible(lambda: f"{name} is leaving; nothing was written"):
        state = await wait_until_done(read, f"{name} leaves", timeout)
    if not state.done:
        typer.echo(f"{name}: {message}; it has not left after {timeout:g} s", err=True)
        raise typer.Exit(NOT_YET)


async def _agent(member: Applier) -> Json | None:
    """Return the Deployment of the agent in a cluster; None if it has none."""
    from kubeocean.api.fleet.names import SYSTEM_NAMESPACE
    from kubeocean.errors import NotFound
    from kubeocean.install.fleet import DEPLOYMENTS, MEMBER_ACCOUNT

    try:
        stored = await member.client.get(
            DEPLOYMENTS, MEMBER_ACCOUNT, SYSTEM_NAMESPACE, keep_raw=True
        )
    except NotFound:
        return None
    return stored.content()


async def _token(hub: Applier, name: str) -> str:
    """Return a token for the member's identity on the hub."""
    from kubeocean.api.fleet.names import SYSTEM_NAMESPACE
    from kubeocean.install.credentials import LIFETIME
    from kubeocean.install.fleet import identity_name
    from kubeocean.runtime.kinds import SERVICE_ACCOUNTS

    body = {
        "apiVersion": "authentication.k8s.io/v1",
        "kind": "TokenRequest",
        "spec": {"expirationSeconds": int(LIFETIME.total_seconds())},
    }
    answer = await hub.client.post(
        SERVICE_ACCOUNTS, identity_name(name), "token", body, SYSTEM_NAMESPACE
    )
    return str(answer["status"]["token"])


async def _wait(
    hub: Applier, name: str, timeout: float, *, see: str, agent: Applier | None = None
) -> None:
    """Wait until the member has joined; `agent` is the cluster whose Deployment is its agent."""
    from kubeocean.api.fleet.clusters import MEMBER_CLUSTERS
    from kubeocean.api.fleet.names import SYSTEM_NAMESPACE
    from kubeocean.errors import NotFound
    from kubeocean.inspect.fleet import cluster_view
    from kubeocean.install.fleet import MEMBER_ACCOUNT
    from kubeocean.install.wait import State, deployment_trouble
    from kubeocean.runtime.clock import RealClock

    async def read() -> State:
        try:
            member = await hub.client.get(MEMBER_CLUSTERS, name)
        except NotFound:
            return State("the hub has not created the MemberCluster yet")
        view = cluster_view(member, RealClock().now())
        if view.state == "Joined":
            return State(view.state, done=True)
        trouble = ""
        if agent is not None:
            trouble = await deployment_trouble(agent, MEMBER_ACCOUNT, SYSTEM_NAMESPACE)
        reasons = (view.state, view.health_message, *view.problems, trouble and f"agent: {trouble}")
        return State("; ".join(filter(None, reasons)))

    with interruptible(lambda: f"{name} is joining; the hub and the member continue"):
        state = await wait_until_done(read, f"{name} joins", timeout)
    if not state.done:
        give_up(name, state.message, timeout, see=see)
