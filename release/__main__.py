"""Entry point of ``python -m release``."""

from release.cli import main

if __name__ == "__main__":
    main()
