"""Whose an object is; see `api.ownership`."""

from __future__ import annotations

from kubeocean.api.ownership import Claim, Ids, bears_ids, claim_copy, claim_pod, ownership

__all__ = ["Claim", "Ids", "bears_ids", "claim_copy", "claim_pod", "ownership"]
