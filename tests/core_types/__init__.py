"""Schemas of Kubernetes' own types within the CRDs, generated from the OpenAPI document of a Kubernetes release."""
