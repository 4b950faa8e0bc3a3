"""Why things are as they are: facts from both clusters, the syncer's own rules, one page."""
