"""Forge: what an object of the other side should look like. Pure: no IO, no clock."""

__all__: list[str] = []
