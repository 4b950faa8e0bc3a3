"""Objects: reads and writes of placed objects in the member cluster.

`apply` carries out the steps that `plan.decide` returns for one manifest. Every write has a
precondition: a create fails if the name is taken, patches carry the resourceVersion that they were
computed from, a server-side apply fails on conflicts with other field managers, and a delete names
a UID. After a write that another writer preceded, the object is read and the step decided again.

Errors that concern the manifest become its result. Errors that concern the member's API server as
a whole (`NO_ANSWER`) are raised.
"""

from __future__ import annotations

from collections.abc import Callable, Container
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Final, TypeAlias

from kubeocean.api.fleet.names import FIELD_MANAGER
from kubeocean.api.fleet.strategies import ApplyStrategy
from kubeocean.api.group import Domain
from kubeocean.errors import (
    AlreadyExists,
    ApiError,
    Conflict,
    Invalid,
    NotFound,
    ServerTimeout,
    ServiceUnavailable,
    TooManyRequests,
    Unauthorized,
    Unreachable,
)
from kubeocean.fleet.applier.leftovers import Delete, DropOwner, LeaveAlone, removal_of
from kubeocean.fleet.applier.manifests import Identifier, Manifest, Owner
from kubeocean.fleet.applier.plan import (
    Adopt,
    Apply,
    Compare,
    Create,
    DryRun,
    Finish,
    Keep,
    ManifestFacts,
    NextStep,
    OwnFields,
    PatchObject,
    Result,
    applied,
    decide,
    failed,
    is_leasing_copy,
    not_read,
)
from kubeocean.fleet.pool import ObjectRef
from kubeocean.runtime.client import ApplyPatch, Client, MergePatch
from kubeocean.runtime.discovery import ApiResource, Discovery
from kubeocean.runtime.objects import Json, Key, Resource, Untyped

__all__ = ["NO_ANSWER", "MemberObjects", "PassFacts"]

# The API server, or a proxy in front of it, did not process the request.
NO_ANSWER: Final = (
    Unreachable,
    ServiceUnavailable,
    TooManyRequests,
    ServerTimeout,
    Unauthorized,
)
_ATTEMPTS: Final = 3  # to write an object that other writers change, in one pass
_FIELD_CONFLICT: Final = "FieldManagerConflict"
_MOST_STEPS: Final = 5  # compare, adopt, compare again, own fields, write
_Change: TypeAlias = Callable[[Json], Json | None]  # of an owner reference


@dataclass(frozen=True, slots=True)
class PassFacts:
    """Facts that all manifests of a Work share in one pass."""

    owner: Owner
    strategy: ApplyStrategy
    hub_works: Container[str]
    has_finished: bool = False  # the manifest is a Job that has finished and was removed by its TTL


class MemberObjects:
    """Reads, applies and removes the placed objects of one member cluster."""

    def __init__(self, member: Client, *, domain: Domain, discovery: Discovery) -> None:
        self._client = member.with_field_manager(FIELD_MANAGER)
        self._domain = domain
        self._discovery = discovery

    async def resource_of(self, api_version: str, kind: str) -> ApiResource | None:
        """Return the API resource of a kind; None if the member does not serve the kind."""
        return await self._discovery.find(api_version, kind)

    async def read(self, ref: ObjectRef) -> Json | None:
        """Read an object from the member; None if it does not exist."""
        try:
            obj = await self._client.get(
                ref.resource, ref.key.name, ref.key.namespace, keep_raw=True
            )
        except NotFound:
            return None
        return obj.content()

    # Applying

    async def apply(self, manifest: Manifest, ref: ObjectRef, facts: PassFacts) -> Result:
        """Apply one manifest to its object, or compare them, as the apply strategy requires."""
        result = not_read("")
        for _ in range(_ATTEMPTS):
            try:
                live = await self.read(ref)
            except NO_ANSWER:
                raise
            except ApiError as error:
                return not_read(str(error))
            outcome = await self._attempt(manifest, ref, live, facts)
            if isinstance(outcome, Result):
                return outcome
            result = failed(_facts_of(manifest, live, facts), outcome.step, str(outcome.error))
        return result

    async def _attempt(
        self, manifest: Manifest, ref: ObjectRef, live: Json | None, common: PassFacts
    ) -> Result | _Lost:
        """Carry out planned steps until there is a result, or another writer changed the object."""
        facts = self._with_copies(_facts_of(manifest, live, common))
        for _ in range(_MOST_STEPS):
            step = decide(facts)
            try:
                match step:
                    case Finish(result):
                        return result
                    case Keep():
                        assert facts.live is not None
                        return applied(facts, facts.live)
                    case Compare(patch):
                        facts = replace(facts, dry_run=await self._dry_run(ref, patch))
                        continue
                    case Adopt():
                        adopted = await self._patch(ref, step.patch)
                        facts = self._with_copies(replace(facts, live=adopted, dry_run=None))
                        continue
                    case OwnFields():
                        facts = replace(facts, live=await self._patch(ref, step.patch))
                        continue
                    case Create(body):
                        return applied(facts, await self._create(ref, body))
                    case PatchObject() | Apply():
                        return applied(facts, await self._patch(ref, step.patch))
            except NO_ANSWER:
                raise
            except ApiError as error:
                if _is_lost_race(step, error):
                    return _Lost(step, error)
                return failed(facts, step, str(error))
        return failed(facts, step, "the object changes all the time")

    def _with_copies(self, facts: ManifestFacts) -> ManifestFacts:
        copied = facts.live is not None and is_leasing_copy(facts.live, self._domain)
        return replace(facts, copied_by_leasing=copied)

    async def _create(self, ref: ObjectRef, body: Json) -> Json:
        obj = await self._client.create(
            ref.resource, body, namespace=ref.key.namespace, keep_raw=True
        )
        return obj.content()

    async def _patch(self, ref: ObjectRef, patch: Any) -> Json:
        obj = await self._client.patch(
            ref.resource, ref.key.name, patch, ref.key.namespace, keep_raw=True
        )
        return obj.content()

    async def _dry_run(self, ref: ObjectRef, patch: ApplyPatch) -> DryRun:
        try:
            obj = await self._client.patch(
                ref.resource, ref.key.name, patch, ref.key.namespace, dry_run=True, keep_raw=True
            )
        except NO_ANSWER:
            raise
        except Invalid:
            return DryRun(invalid=True)
        except ApiError as error:
            return DryRun(error=str(error))
        return DryRun(body=obj.content())

    # Removing

    async def remove(self, ref: ObjectRef, owner: Owner, heir: Owner | None = None) -> None:
        """Delete a left-over, or drop the AppliedWork's owner reference if it has other owners.

        :param heir: the AppliedWork that becomes an owner instead, so that the object stays.
        :raises Conflict: the object has changed since it was read.
        """
        live = await self.read(ref)
        try:
            match removal_of(live, owner, heir):
                case Delete(uid):
                    await self._client.delete(
                        ref.resource,
                        ref.key.name,
                        ref.key.namespace,
                        uid=uid,
                        propagation="Background",
                    )
                case DropOwner(patch):
                    await self._patch(ref, patch)
                case LeaveAlone():
                    pass
        except NotFound:
            pass

    async def abandon(self, ref: ObjectRef, owner: Owner) -> None:
        """Drop the AppliedWork's owner reference, so that the object is not garbage-collected."""
        await self._change_references(ref, owner, lambda reference: None)

    async def unblock(self, ref: ObjectRef, owner: Owner) -> None:
        """Unset `blockOwnerDeletion`, so that the AppliedWork can be deleted before this object."""
        await self._change_references(
            ref, owner, lambda reference: {**reference, "blockOwnerDeletion": False}
        )

    async def _change_references(self, ref: ObjectRef, owner: Owner, change: _Change) -> None:
        live = await self.read(ref)
        if live is None:
            return
        metadata = live["metadata"]
        old = list(metadata.get("ownerReferences") or ())
        changed = (change(each) if owner.is_named_by(each) else each for each in old)
        new = [each for each in changed if each is not None]
        if new == old:
            return
        version = {"ownerReferences": new, "resourceVersion": metadata["resourceVersion"]}
        with suppress(NotFound):
            await self._patch(ref, MergePatch({"metadata": version}))

    async def ref_of(self, identifier: Identifier) -> ObjectRef:
        """Return the reference to an object that an earlier pass has applied.

        The member may serve the kind in another version by now, or not at all: then reading the
        object fails with the server's error.
        """
        group, version, kind = identifier.group, identifier.version, identifier.kind
        served = [
            each
            for each in await self._discovery.resources()
            if (each.group, each.kind) == (group, kind)
        ]
        same = [each for each in served if each.version == version]
        if resource := next(iter((*same, *served)), None):
            return ObjectRef(resource.untyped(), Key(identifier.namespace, identifier.name))
        namespaced = bool(identifier.namespace)
        unknown = Resource(group, version, identifier.resource, kind, namespaced, Untyped)
        return ObjectRef(unknown, Key(identifier.namespace, identifier.name))


@dataclass(frozen=True, slots=True)
class _Lost:
    """Result of a write that failed because another writer changed the object first."""

    step: NextStep
    error: ApiError


def _facts_of(manifest: Manifest, live: Json | None, facts: PassFacts) -> ManifestFacts:
    return ManifestFacts(
        manifest,
        live,
        facts.owner,
        facts.strategy,
        facts.hub_works,
        has_finished=facts.has_finished,
    )


def _is_lost_race(step: NextStep, error: ApiError) -> bool:
    """Whether a write failed because the object changed, so that it must be read again."""
    match step:
        case Create():
            return isinstance(error, AlreadyExists)
        case Apply():
            conflicts = any(cause.reason == _FIELD_CONFLICT for cause in error.causes)
            return isinstance(error, Conflict) and not conflicts
        case _:
            return isinstance(error, Conflict | NotFound)
