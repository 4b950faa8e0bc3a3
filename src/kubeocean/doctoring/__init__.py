"""Is an installation healthy? Facts from all clusters, small checks, findings with a remedy."""
