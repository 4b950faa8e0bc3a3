"""Top-down: what the computing cluster wants is made so in the worker."""

__all__: list[str] = []
