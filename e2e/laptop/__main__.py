"""`python -m e2e.laptop`."""

from e2e.laptop.cli import main

main()
