"""Settings, flags, start-up, leader election and log level of the manager, the syncer and the
proxier.
"""

__all__: list[str] = []
