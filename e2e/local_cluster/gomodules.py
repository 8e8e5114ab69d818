"""Programs released as Go modules: built from source by version, with the sums of every module committed.

The folder ``modules/programs`` is one module for all of them; its go.mod and go.sum pin the programs and all that they
need. Nothing is downloaded but modules whose sums are known, and nothing has to be published for us.
"""

import hashlib
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from e2e.local_cluster import versions
from e2e.local_cluster.cache import cache_entry, fleet_home
from e2e.local_cluster.commands import run, stream
from e2e.local_cluster.errors import ClusterError
from e2e.local_cluster.steps import step

__all__ = [
    "COREDNS",
    "ETCD",
    "HELM",
    "KUBERNETES",
    "PAUSE",
    "SPARK_OPERATOR",
    "GoPrograms",
    "ensure_programs",
    "module_folder",
]

MODULES = Path(__file__).parent / "modules"
FOLDER = MODULES / "programs"


@dataclass(frozen=True, slots=True)
class GoPrograms:
    """Programs that are built together, and the variables set by the linker."""

    name: str
    version: str
    programs: Mapping[str, str]
    """Name of each program and the import path of its main package."""
    stamps: Mapping[str, str] = field(default_factory=dict)
    """Variables set by the linker: the version that a program reports is not in its source."""

    def digest(self) -> str:
        """Eight hex digits that change with anything that changes the programs built."""
        content = hashlib.sha256()
        own = [FOLDER / package / "main.go" for package in self.programs.values() if package.startswith("./")]
        for file in (FOLDER / "go.mod", FOLDER / "go.sum", *sorted(own)):
            content.update(file.read_bytes())
        content.update(repr((sorted(self.programs.items()), sorted(self.stamps.items()))).encode())
        return content.hexdigest()[:8]


def _kubernetes() -> GoPrograms:
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
    return GoPrograms(
        name="kubernetes",
        version=versions.KUBERNETES,
        programs={name: f"k8s.io/kubernetes/cmd/{name}" for name in names},
        stamps={f"{package}.{key}": value for package in packages for key, value in values.items()},
    )


KUBERNETES = _kubernetes()
ETCD = GoPrograms("etcd", versions.ETCD, {"etcd": "go.etcd.io/etcd/server/v3"})
HELM = GoPrograms(
    "helm",
    versions.HELM,
    {"helm": "helm.sh/helm/v4/cmd/helm"},
    {"helm.sh/helm/v4/internal/version.version": f"v{versions.HELM}"},
)
PAUSE = GoPrograms("pause", "1", {"pause": "./pause"})
COREDNS = GoPrograms("coredns", versions.COREDNS, {"coredns": "./coredns"})
SPARK_OPERATOR = GoPrograms("spark-operator", versions.SPARK_OPERATOR, {"spark-operator": "./spark-operator"})


def module_folder(path: str) -> Path:
    """The folder of a pinned module's source, for files that a program's release has beside its code.

    Raises ClusterError (``MissingPrograms``, ``DownloadFailed``).
    """
    words = [_go(path), "mod", "download", path]
    run(words, reason="DownloadFailed", cwd=FOLDER, env={**os.environ, **_environment()})
    words = [_go(path), "list", "-m", "-f", "{{.Dir}}", path]
    return Path(run(words, reason="DownloadFailed", cwd=FOLDER, env={**os.environ, **_environment()}).strip())


def ensure_programs(wanted: GoPrograms) -> Path:
    """Return the folder with the programs, building them if this version is not in the cache yet.

    Raises ClusterError (``MissingPrograms`` without a Go toolchain, ``DownloadFailed``, ``BuildFailed``).
    """
    folder = fleet_home() / "programs" / f"{wanted.name}-{wanted.version}-{wanted.digest()}"
    return cache_entry(folder, lambda into: _build(wanted, into), purpose=f"building {wanted.name}")


def _build(wanted: GoPrograms, into: Path) -> None:
    title = f"{wanted.name} {wanted.version}"
    go = _go(title)
    logs = fleet_home() / "logs"
    packages = list(wanted.programs.values())

    with step(f"{title}: download modules") as current:
        # Loading the packages fetches what they need and no more; `go mod download` would fetch the whole graph.
        stream(
            [go, "list", "-deps", "-f", "{{.ImportPath}}", *packages],
            log=logs / f"{wanted.name}-download.log",
            on_line=lambda line: setattr(current, "note", line.removeprefix("go: ")),
            reason="DownloadFailed",
            cwd=FOLDER,
            env=_environment(),
        )
        current.note = ""

    compiled = 0

    def count(line: str) -> None:
        nonlocal compiled
        compiled += 1
        current.note = f"{compiled} packages compiled, last {line[:80]}"

    target = into / next(iter(wanted.programs)) if len(packages) == 1 else f"{into}{os.sep}"
    stamps = " ".join(f"-X {name}={value}" for name, value in wanted.stamps.items())
    with step(f"{title}: compile") as current:
        stream(
            [go, "build", "-v", "-trimpath", "-ldflags", f"-s -w {stamps}".strip(), "-o", target, *packages],
            log=logs / f"{wanted.name}-build.log",
            on_line=count,
            reason="BuildFailed",
            cwd=FOLDER,
            env=_environment(),
        )
        current.note = ", ".join(wanted.programs) + ("" if compiled else "; all from the compiler's cache")


def _go(purpose: str) -> str:
    go = shutil.which("go")
    if go is None:
        raise ClusterError(
            "MissingPrograms",
            f"building {purpose} needs `go` (1.26 or later) on the PATH and it is not there; "
            "install the Go toolchain of your distribution or the official one and run the command again",
        )
    return go


def _environment() -> dict[str, str]:
    # A static program runs in an image from scratch as well as in any root file system. The tool module has no state of
    # version control to stamp.
    flags = f"{os.environ.get('GOFLAGS', '')} -buildvcs=false".strip()
    return {"CGO_ENABLED": "0", "GOWORK": "off", "GOFLAGS": flags}
