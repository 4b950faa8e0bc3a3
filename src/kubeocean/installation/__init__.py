"""Installation: all objects that an installation consists of, on both sides, as pure functions of a
few values; and how they are put into clusters and taken out again."""
