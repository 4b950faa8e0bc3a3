"""KubeFleet's API: kinds, names, conditions and the definitions that API servers get."""
