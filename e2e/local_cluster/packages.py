"""Programs of the distribution: found on the PATH, installed if possible, otherwise named in an error."""

import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from e2e.local_cluster.cache import file_lock, fleet_home
from e2e.local_cluster.commands import stream
from e2e.local_cluster.errors import ClusterError
from e2e.local_cluster.steps import step

__all__ = ["CLUSTER_PROGRAMS", "IMAGE_PROGRAMS", "KAFKA_PROGRAMS", "cni_programs", "ensure_programs_installed"]

CNI_FOLDERS = (Path("/usr/lib/cni"), Path("/opt/cni/bin"), Path("/usr/libexec/cni"))


@dataclass(frozen=True, slots=True)
class Requirement:
    """A program (or the path of a file), and the Debian package that holds it."""

    program: str
    package: str

    def met(self) -> bool:
        """True if the program is installed. Network plugins have their own folder."""
        if self.program.startswith("/"):
            return Path(self.program).exists()
        if self.package == "containernetworking-plugins":
            return any((folder / self.program).exists() for folder in CNI_FOLDERS)
        return shutil.which(self.program, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin") is not None


CLUSTER_PROGRAMS = (
    Requirement("containerd", "containerd"),
    Requirement("ctr", "containerd"),
    Requirement("runc", "runc"),
    Requirement("ptp", "containernetworking-plugins"),
    Requirement("portmap", "containernetworking-plugins"),
    Requirement("iptables", "iptables"),
    Requirement("ip", "iproute2"),
    Requirement("conntrack", "conntrack"),
    Requirement("ethtool", "ethtool"),
    Requirement("socat", "socat"),
    Requirement("openssl", "openssl"),
    Requirement("unshare", "util-linux"),
    Requirement("nsenter", "util-linux"),
    Requirement("setpriv", "util-linux"),
    Requirement("mount", "mount"),
)
IMAGE_PROGRAMS = (
    Requirement("buildah", "buildah"),
    Requirement("mmdebstrap", "mmdebstrap"),
    # Signs Debian's packages; other distributions do not have it by default.
    Requirement("/usr/share/keyrings/debian-archive-keyring.gpg", "debian-archive-keyring"),
)
KAFKA_PROGRAMS = (
    Requirement("java", "default-jdk-headless"),
    Requirement("jlink", "default-jdk-headless"),
    Requirement("mvn", "maven"),
)


def ensure_programs_installed(requirements: Sequence[Requirement]) -> None:
    """Install the packages of the programs that are missing: as root on Debian and its kin.

    Programs on the PATH are used, whatever their source, and nothing is removed in favour of a package.
    Raises ClusterError (``MissingPrograms``) elsewhere, with what is missing and how to get it, and
    (``InstallFailed``).
    """
    if all(each.met() for each in requirements):
        return
    with file_lock(fleet_home() / ".packages.lock", purpose="installing packages"):
        _install([each for each in requirements if not each.met()])


def _install(missing: Sequence[Requirement]) -> None:
    if not missing:
        return
    programs = ", ".join(each.program for each in missing)
    packages = sorted({each.package for each in missing})
    apt = shutil.which("apt-get")
    if apt is None or os.geteuid() != 0:
        raise ClusterError(
            "MissingPrograms",
            f"not on the PATH: {programs}. Install them with your package manager (the Debian packages are "
            f"{' '.join(packages)}), or run this as root on Debian or Ubuntu, where it installs them itself",
        )
    env = {"DEBIAN_FRONTEND": "noninteractive"}
    log = fleet_home() / "logs" / "packages.log"
    install = [apt, "install", "--yes", "--no-install-recommends", "--no-remove", *packages]
    with step(f"install {' '.join(packages)}") as current:
        if not _known_to_apt():
            stream(
                [apt, "update"],
                log=log,
                on_line=lambda line: setattr(current, "note", line[:80]),
                reason="InstallFailed",
                env=env,
            )
        stream(
            install,
            log=log,
            on_line=lambda line: setattr(current, "note", line[:80]),
            reason="InstallFailed",
            env=env,
        )
        current.note = ""
    still = [each.program for each in missing if not each.met()]
    if still:
        raise ClusterError("InstallFailed", f"installed {' '.join(packages)}, and still not found: {', '.join(still)}")


def cni_programs() -> Path:
    """The folder of the network plugins. Raises ClusterError (``MissingPrograms``)."""
    for folder in CNI_FOLDERS:
        if (folder / "ptp").exists():
            return folder
    raise ClusterError(
        "MissingPrograms", f"no network plugins (ptp, portmap) in any of {', '.join(map(str, CNI_FOLDERS))}"
    )


def _known_to_apt() -> bool:
    """True if package lists have been fetched before: on a fresh machine or image there are none."""
    return any(Path("/var/lib/apt/lists").glob("*_Packages*"))
