"""The fleet: registers member clusters at a hub and places objects on them."""

__all__: list[str] = []
