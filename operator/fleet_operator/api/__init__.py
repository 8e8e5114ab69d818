"""The custom resources as Python sees them: one package for each served version."""
