"""``python -m e2e.local_cluster``."""

from e2e.local_cluster.cli import main

if __name__ == "__main__":
    main()
