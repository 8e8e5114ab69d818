"""Programs released as Go modules: built from source by version, with the sums of every module committed.

Each folder under ``modules/`` is a module without code of its own; its go.mod and go.sum pin a program and all that it
needs. Nothing is downloaded but modules whose sums are known, and nothing has to be published for us.
"""

import hashlib
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from e2e.local_cluster import versions
from e2e.local_cluster.cache import cache_entry, fleet_home
from e2e.local_cluster.commands import stream
from e2e.local_cluster.errors import ClusterError
from e2e.local_cluster.steps import step

__all__ = ["COREDNS", "ETCD", "HELM", "KUBERNETES", "PAUSE", "GoModule", "ensure_programs"]

MODULES = Path(__file__).parent / "modules"


@dataclass(frozen=True, slots=True)
class GoModule:
    """A tool-only module: the programs it builds, and the variables set by the linker."""

    name: str
    version: str
    programs: Mapping[str, str]
    """Name of each program and the import path of its main package."""
    stamps: Mapping[str, str] = field(default_factory=dict)
    """Variables set by the linker: the version that a program reports is not in its source."""

    @property
    def folder(self) -> Path:
        """The folder of go.mod and go.sum."""
        return MODULES / self.name

    def digest(self) -> str:
        """Eight hex digits that change with anything that changes the programs built."""
        content = hashlib.sha256()
        for file in sorted([*self.folder.glob("go.*"), *self.folder.glob("main.go")]):
            content.update(file.read_bytes())
        content.update(repr((sorted(self.programs.items()), sorted(self.stamps.items()))).encode())
        return content.hexdigest()[:8]


def _kubernetes() -> GoModule:
    major, minor, _ = versions.KUBERNETES.split(".")
    values = {
        "gitVersion": f"v{versions.KUBERNETES}",
        "gitMajor": major,
        "gitMinor": minor,
        "gitTreeState": "clean",
        "gitCommit": "local",
        "buildDate": "2026-01-01T00:00:00Z",
    }
    # Two copies of the version package: the programs read one, client-go (hence kubectl) the other.
    packages = ("k8s.io/component-base/version", "k8s.io/client-go/pkg/version")
    names = ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet", "kube-proxy", "kubectl")
    return GoModule(
        name="kubernetes",
        version=versions.KUBERNETES,
        programs={name: f"k8s.io/kubernetes/cmd/{name}" for name in names},
        stamps={f"{package}.{key}": value for package in packages for key, value in values.items()},
    )


KUBERNETES = _kubernetes()
ETCD = GoModule("etcd", versions.ETCD, {"etcd": "go.etcd.io/etcd/server/v3"})
HELM = GoModule(
    "helm",
    versions.HELM,
    {"helm": "helm.sh/helm/v4/cmd/helm"},
    {"helm.sh/helm/v4/internal/version.version": f"v{versions.HELM}"},
)
PAUSE = GoModule("pause", "1", {"pause": "."})
COREDNS = GoModule("coredns", versions.COREDNS, {"coredns": "."})


def ensure_programs(module: GoModule) -> Path:
    """Return the folder with the module's programs, building them if this version is not in the cache yet.

    Raises ClusterError (``MissingPrograms`` without a Go toolchain, ``DownloadFailed``, ``BuildFailed``).
    """
    folder = fleet_home() / "programs" / f"{module.name}-{module.version}-{module.digest()}"
    return cache_entry(folder, lambda into: _build(module, into), purpose=f"building {module.name}")


def _build(module: GoModule, into: Path) -> None:
    go = shutil.which("go")
    if go is None:
        raise ClusterError(
            "MissingPrograms",
            f"building {module.name} {module.version} needs `go` (1.26 or later) on the PATH and it is not there; "
            "install the Go toolchain of your distribution or the official one and run the command again",
        )
    logs = fleet_home() / "logs"
    # A static program runs in an image from scratch as well as in any root file system.
    env = {"CGO_ENABLED": "0", "GOWORK": "off", "GOFLAGS": _flags_without_vcs()}
    packages = list(module.programs.values())
    title = f"{module.name} {module.version}"

    with step(f"{title}: download modules") as current:
        # Loading the packages fetches what they need and no more; `go mod download` would fetch the whole graph.
        stream(
            [go, "list", "-deps", "-f", "{{.ImportPath}}", *packages],
            log=logs / f"{module.name}-download.log",
            on_line=lambda line: setattr(current, "note", line.removeprefix("go: ")),
            reason="DownloadFailed",
            cwd=module.folder,
            env=env,
        )
        current.note = ""

    compiled = 0

    def count(line: str) -> None:
        nonlocal compiled
        compiled += 1
        current.note = f"{compiled} packages compiled, last {line[:80]}"

    target = into / next(iter(module.programs)) if len(packages) == 1 else f"{into}{os.sep}"
    stamps = " ".join(f"-X {name}={value}" for name, value in module.stamps.items())
    with step(f"{title}: compile") as current:
        stream(
            [go, "build", "-v", "-trimpath", "-ldflags", f"-s -w {stamps}".strip(), "-o", target, *packages],
            log=logs / f"{module.name}-build.log",
            on_line=count,
            reason="BuildFailed",
            cwd=module.folder,
            env=env,
        )
        current.note = ", ".join(module.programs) + ("" if compiled else "; all from the compiler's cache")


def _flags_without_vcs() -> str:
    """The user's GOFLAGS, with the stamping of a version-control state off: the tool modules have none."""
    return f"{os.environ.get('GOFLAGS', '')} -buildvcs=false".strip()
