"""The manager: looks after the bindings of a computing cluster."""
