"""The release: version, artefacts, signatures, and their publication to a registry."""
