"""Commands other than `run`: `check`, `offsets`, `failed`, `redrive`, `reset` and `skip`."""
