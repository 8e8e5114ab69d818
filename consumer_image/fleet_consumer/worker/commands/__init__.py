"""Commands beside `run`: `check`, `offsets`, `failed` and `redrive`."""
