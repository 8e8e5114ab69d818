"""The operator of Consumer Fleet."""
