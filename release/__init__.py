"""Releases of the project: version, artefacts, signatures, and publication to a registry."""
