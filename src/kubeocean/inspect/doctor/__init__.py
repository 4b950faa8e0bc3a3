"""The checks of doctor: how their snapshot is read, the checks, and the diagnosis."""

__all__: list[str] = []
