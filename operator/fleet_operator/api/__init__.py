"""Python models of the custom resources: one package for each served version."""
