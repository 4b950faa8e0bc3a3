"""Objects of an installation, server-side apply, and the steps of install, join and leave."""

__all__: list[str] = []
