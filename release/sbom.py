"""SBOMs in CycloneDX format. The distribution's SBOM comes from the lock files, an image's from the image's layers.

An image's packages are read from the content of the image, not from its build files. The sources are the dpkg status
file, the metadata of Python packages, and jar files.
"""

import hashlib
import json
import re
import tarfile
import uuid
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.parser import HeaderParser
from pathlib import Path
from typing import Final

from cyclonedx.model import HashAlgorithm, HashType
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.output.json import JsonV1Dot6
from packageurl import PackageURL

from release.errors import ReleaseError

__all__ = ["Contents", "locked", "of_distribution", "of_image", "read_contents", "read_layout"]

PINNED: Final = re.compile(r"(?m)^([\w.-]+)==(\S+)((?:\n    # .*)*)")
DEBIAN_STATUS: Final = "var/lib/dpkg/status"
METADATA: Final = re.compile(r"\.dist-info/METADATA$")
JAR: Final = re.compile(r"/(?P<name>[\w.-]+?)-(?P<version>\d[\w.-]*)\.jar$")
REMOVED: Final = ".wh."
"""Prefix of a whiteout file. Such a file removes a file or folder of a lower layer."""


@dataclass(slots=True)
class Contents:
    """The packages that an image contains."""

    debian: dict[str, str] = field(default_factory=dict)
    """Versions of Debian packages by `name:architecture`."""
    python: dict[str, tuple[str, str]] = field(default_factory=dict)
    """Names and versions of Python packages by the path of their METADATA file."""
    jars: dict[str, str] = field(default_factory=dict)
    """SHA-256 digests of jar files by path."""


def locked(texts: Iterable[str]) -> dict[str, tuple[str, frozenset[str]]]:
    """Parse lock files of pip-compile. Returns the version of each package, and the packages that need it."""
    found: dict[str, tuple[str, frozenset[str]]] = {}
    for text in texts:
        for name, version, comment in PINNED.findall(text):
            users = {word for line in comment.splitlines() for word in re.findall(r"# (?:via|  ) *([\w.-]+)", line)}
            before = found.get(name, (version, frozenset()))[1]
            found[name] = (version, before | (users - {"-c", "-r"}))
    return found


def of_distribution(name: str, version: str, packages: Mapping[str, tuple[str, frozenset[str]]], when: int) -> str:
    """Return the SBOM of the wheel and sdist: the locked packages of all extras, and their dependencies."""
    components = {each: _python(each, number) for each, (number, _) in packages.items()}
    subject = Component(
        name=name,
        version=version,
        type=ComponentType.LIBRARY,
        bom_ref="subject",
        purl=PackageURL("pypi", None, name, version),
    )
    bom = _bom(subject, components.values(), when)
    for user, component in [(name, subject), *components.items()]:
        needed = [components[each] for each, (_, users) in packages.items() if user in users]
        bom.register_dependency(component, needed)
    return _json(bom)


def of_image(name: str, version: str, digest: str, contents: Contents, when: int) -> str:
    """Return the SBOM of an image for one architecture. `digest` is the digest of the image's manifest."""
    components = [_debian(each, number) for each, number in contents.debian.items()]
    components += [_python(*each) for each in set(contents.python.values())]
    components += [_jar(path, sha) for path, sha in contents.jars.items()]
    subject = Component(
        name=name,
        version=version,
        type=ComponentType.CONTAINER,
        bom_ref="subject",
        purl=PackageURL("oci", None, name, digest),
    )
    bom = _bom(subject, components, when)
    bom.register_dependency(subject, components)
    return _json(bom)


def read_layout(layout: Path) -> Iterator[tuple[str, str, list[Path]]]:
    """Yield architecture, digest and layers of each image in an OCI layout. Raises ReleaseError (``NotAnImage``)."""
    pending = list(json.loads((layout / "index.json").read_text())["manifests"])
    while pending:
        entry = pending.pop(0)
        document = json.loads(_blob(layout, entry["digest"]).read_text())
        if "manifests" in document:
            pending += document["manifests"]
            continue
        config = json.loads(_blob(layout, document["config"]["digest"]).read_text())
        if "architecture" not in config:
            raise ReleaseError("NotAnImage", f"{layout}: {entry['digest']} has no architecture; build the images again")
        yield config["architecture"], entry["digest"], [_blob(layout, each["digest"]) for each in document["layers"]]


def read_contents(layers: Iterable[Path]) -> Contents:
    """Read the packages in the layers of an image. `layers` begins with the lowest layer."""
    found = Contents()
    for layer in layers:
        with tarfile.open(layer, mode="r|*") as archive:
            for entry in archive:
                _take(found, archive, entry)
    return found


def _take(found: Contents, archive: tarfile.TarFile, entry: tarfile.TarInfo) -> None:
    path = "/" + entry.name.removeprefix("./").lstrip("/")
    folder, _, name = path.rpartition("/")
    if name.startswith(REMOVED):
        gone = f"{folder}/{name.removeprefix(REMOVED)}"
        for paths in (found.python, found.jars):
            for each in [each for each in paths if each == gone or each.startswith(f"{gone}/")]:
                del paths[each]
        return
    content = archive.extractfile(entry) if entry.isreg() else None
    if content is None:
        return
    if path == f"/{DEBIAN_STATUS}":
        found.debian = _debian_packages(content.read().decode(errors="replace"))
    elif METADATA.search(path):
        headers = HeaderParser().parsestr(content.read().decode(errors="replace"))
        found.python[path] = (headers["Name"].lower(), headers["Version"])
    elif path.endswith(".jar"):
        found.jars[path] = hashlib.sha256(content.read()).hexdigest()


def _debian_packages(status: str) -> dict[str, str]:
    paragraphs = [HeaderParser().parsestr(each) for each in status.split("\n\n") if each.strip()]
    installed = [each for each in paragraphs if each["Status"] and each["Status"].endswith(" installed")]
    return {f"{each['Package']}:{each['Architecture']}": each["Version"] for each in installed}


def _blob(layout: Path, digest: str) -> Path:
    return layout / "blobs" / digest.replace(":", "/")


def _python(name: str, version: str) -> Component:
    return Component(
        name=name, version=version, bom_ref=f"pypi/{name}@{version}", purl=PackageURL("pypi", None, name, version)
    )


def _debian(name: str, version: str) -> Component:
    package, _, architecture = name.partition(":")
    purl = PackageURL("deb", "debian", package, version, {"arch": architecture})
    return Component(name=package, version=version, bom_ref=f"deb/{name}", purl=purl)


def _jar(path: str, digest: str) -> Component:
    named = JAR.search(path)
    name, version = (named["name"], named["version"]) if named else (Path(path).stem, None)
    # No purl, because the file name of a jar does not contain the Maven group. The hash identifies the jar.
    return Component(
        name=name, version=version, bom_ref=path, hashes=[HashType(alg=HashAlgorithm.SHA_256, content=digest)]
    )


def _bom(subject: Component, components: Iterable[Component], when: int) -> Bom:
    bom = Bom(components=components, serial_number=uuid.uuid5(uuid.NAMESPACE_URL, str(subject.purl)))
    bom.metadata.component = subject
    bom.metadata.timestamp = datetime.fromtimestamp(when, UTC)
    return bom


def _json(bom: Bom) -> str:
    return JsonV1Dot6(bom).output_as_string(indent=1) + "\n"
