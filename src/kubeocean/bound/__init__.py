"""What our processes have in common: settings, start-up, when a replica works, and how the worker
of a binding is reached while credentials change."""
