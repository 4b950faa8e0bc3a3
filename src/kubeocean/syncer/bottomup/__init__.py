"""Bottom-up: what the worker has is shown in the computing cluster."""

__all__: list[str] = []
