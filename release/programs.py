"""Go programs that releases need. They are built from pinned sources, like those of the embedded test cluster.

Each program has a separate Go module, because cosign and the registry need different versions of the same modules.
Decision: docs/decisions/0066-release-artefacts.md.
"""

from pathlib import Path
from typing import Final

from e2e.local_cluster.gomodules import GoPrograms

__all__ = ["COSIGN", "ORAS", "REGISTRY"]

MODULES: Final = Path(__file__).parent / "modules"
COSIGN: Final = GoPrograms(
    "cosign",
    "3.1.3",
    {"cosign": "github.com/sigstore/cosign/v3/cmd/cosign"},
    {"sigs.k8s.io/release-utils/version.gitVersion": "v3.1.3"},
    folder=MODULES / "cosign",
)
ORAS: Final = GoPrograms("oras", "1.3.6", {"oras": "oras.land/oras/cmd/oras"}, folder=MODULES / "oras")
REGISTRY: Final = GoPrograms(
    "registry",
    "3.1.2",
    {"registry": "github.com/distribution/distribution/v3/cmd/registry"},
    {"github.com/distribution/distribution/v3/version.version": "v3.1.2"},
    folder=MODULES / "registry",
)
"""The registry that the tests use. Releases can be pushed to any registry."""
