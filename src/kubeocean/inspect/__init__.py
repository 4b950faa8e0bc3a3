"""Read-only views of all clusters of an installation: status, top, explain and doctor."""

__all__: list[str] = []
