"""Our kinds: constants, names, views, validation, conditions and custom resource definitions."""
