"""Programs released as Go modules: built from source by version, with the sums of every module committed.

The folder ``modules/programs`` is one module for all of them; its go.mod and go.sum pin the programs and all that they
need. Only modules with known sums are downloaded, and nothing has to be published for us.
"""

import hashlib
import os
import shutil
import subprocess
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
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
    "KEDA",
    "KEDA_FOLDER",
    "KUBERNETES",
    "PAUSE",
    "SPARK_OPERATOR",
    "VERSITYGW",
    "GoPrograms",
    "ensure_programs",
    "module_folder",
]

MODULES = Path(__file__).parent / "modules"
FOLDER = MODULES / "programs"
# KEDA needs other versions of modules than Kubernetes' programs.
KEDA_FOLDER = MODULES / "keda"
# Without debug information, which nobody needs here: a sixth of the compiler's work. All builds have the same flags, so
# that they share packages.
COMPILER_FLAGS = "all=-dwarf=false"
# The compiler collects garbage less often than Go programs do by default.
COMPILER_GOGC = "400"


@dataclass(frozen=True, slots=True)
class GoPrograms:
    """Programs that are built together, and the variables set by the linker."""

    name: str
    version: str
    programs: Mapping[str, str]
    """Name of each program and the import path of its main package."""
    stamps: Mapping[str, str] = field(default_factory=dict)
    """Variables set by the linker: a program's reported version is not in its source."""
    folder: Path = FOLDER
    """The folder of the module that pins the programs."""

    def digest(self) -> str:
        """Eight hex digits that change with anything that changes the programs built."""
        content = hashlib.sha256()
        own = [self.folder / package / "main.go" for package in self.programs.values() if package.startswith("./")]
        for file in (self.folder / "go.mod", self.folder / "go.sum", *sorted(own)):
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
KEDA = GoPrograms(
    "keda",
    versions.KEDA,
    {name: f"github.com/kedacore/keda/v2/cmd/{name}" for name in ("operator", "adapter")},
    folder=KEDA_FOLDER,
)
VERSITYGW = GoPrograms(
    "versitygw",
    versions.VERSITYGW,
    {"versitygw": "github.com/versity/versitygw/cmd/versitygw"},
    {"main.Version": f"v{versions.VERSITYGW}"},
    folder=MODULES / "versitygw",
)
# Without KEDA (only for a benchmark) and the S3 gateway (only for tests of Spark).
ALL = (ETCD, KUBERNETES, HELM, PAUSE, COREDNS, SPARK_OPERATOR)


def module_folder(path: str, pinned_in: Path = FOLDER) -> Path:
    """The folder of a pinned module's source, for the files of a program's release other than code.

    Raises ClusterError (``MissingPrograms``, ``DownloadFailed``).
    """
    words = [_go(path), "mod", "download", path]
    run(words, reason="DownloadFailed", cwd=pinned_in, env={**os.environ, **_environment()})
    words = [_go(path), "list", "-m", "-f", "{{.Dir}}", path]
    return Path(run(words, reason="DownloadFailed", cwd=pinned_in, env={**os.environ, **_environment()}).strip())


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

    fetched = 0

    def fetching(line: str) -> None:
        nonlocal fetched
        fetched += line.startswith("go: downloading")
        current.note = line.removeprefix("go: ")

    with step(f"{title}: download modules") as current:
        stream(
            _list_command(go, packages),
            log=logs / f"{wanted.name}-download.log",
            on_line=fetching,
            reason="DownloadFailed",
            cwd=wanted.folder,
            env=_environment(),
        )
        current.note = f"{fetched} modules" if fetched else ""

    compiled = 0

    def count(line: str) -> None:
        nonlocal compiled
        compiled += 1
        current.note = f"{compiled} packages compiled, last {line[:80]}"

    target = into / next(iter(wanted.programs)) if len(packages) == 1 else f"{into}{os.sep}"
    stamps = " ".join(f"-X {name}={value}" for name, value in wanted.stamps.items())
    flags = [f"-gcflags={COMPILER_FLAGS}", "-ldflags", f"-s -w {stamps}".strip()]
    # If modules are missing, those of the other programs are too. Their download needs no processor.
    beside = _fetching_all(go) if fetched else nullcontext()
    with step(f"{title}: compile") as current, beside:
        stream(
            [go, "build", "-v", "-trimpath", *flags, "-o", target, *packages],
            log=logs / f"{wanted.name}-build.log",
            on_line=count,
            reason="BuildFailed",
            cwd=wanted.folder,
            env={**_environment(), "GOGC": os.environ.get("GOGC", COMPILER_GOGC)},
        )
        current.note = ", ".join(wanted.programs) + ("" if compiled else "; all from the compiler's cache")


def _list_command(go: str, packages: Iterable[str]) -> list[str]:
    # Loading the packages fetches only what they need; `go mod download` would fetch the whole graph.
    return [go, "list", "-deps", "-f", "{{.ImportPath}}", *packages]


@contextmanager
def _fetching_all(go: str) -> Iterator[None]:
    """Fetch modules of all programs until the block ends; later builds fetch what is still missing."""
    packages = [package for each in ALL for package in each.programs.values()]
    process = subprocess.Popen(
        _list_command(go, packages),
        cwd=FOLDER,
        env={**os.environ, **_environment()},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        yield
    finally:
        process.terminate()
        process.wait()


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
