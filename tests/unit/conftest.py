"""How random tests run here: a busy machine fails none of them, and a failure says how it is played again."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

settings.register_profile("unit", deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("unit")
