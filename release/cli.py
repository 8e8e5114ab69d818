"""Command line of ``python -m release``."""

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from e2e.local_cluster.errors import ClusterError
from release.artefacts import OCI, Release, file_artefacts, make
from release.errors import ReleaseError
from release.images import image_artefacts, layers_table
from release.publication import pack, publish, verify
from release.registry import Registry, layout_digest
from release.version import places, project_version, tag

__all__ = ["main"]

DESCRIPTION = "Build, publish and verify a release of Consumer Fleet. Every command may be repeated."


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one command. Exits with code 1 and a message if the command fails."""
    options = _parser().parse_args(arguments)
    try:
        options.run(options)
    except (ReleaseError, ClusterError) as error:
        raise SystemExit(f"error: {error}") from error
    except KeyboardInterrupt:
        raise SystemExit("interrupted; run the same command again to continue") from None


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m release", description=DESCRIPTION)
    commands = parser.add_subparsers(metavar="COMMAND", required=True)

    def add(name: str, run: Callable[[argparse.Namespace], None], text: str) -> Any:
        added = commands.add_parser(name, help=text, description=text)
        added.set_defaults(run=run)
        return added

    add("version", _version, "print the version and every line that contains it")
    tagged = add("tag", _tag, "write a new version to all files; after the commit, run again to create the tag")
    tagged.add_argument("version", metavar="X.Y.Z")
    built = add("build", _build, "build the artefacts into a folder; artefacts that are up to date are kept")
    built.add_argument("--into", type=Path, required=True, metavar="DIR")
    built.add_argument("--registry", required=True, help="default registry of the chart: a host with an optional path")
    which = built.add_mutually_exclusive_group()
    which.add_argument(
        "--without-images", action="store_true", help="build only files and chart (a minute); cannot be published"
    )
    which.add_argument(
        "--images",
        type=Path,
        metavar="DIR",
        help="folder with OCI layouts of the images from another builder (default: build them)",
    )
    published = add("publish", _publish, "push a build to its registry and sign it; a repeated run changes nothing")
    published.add_argument("folder", type=Path, metavar="DIR")
    published.add_argument(
        "--key", required=True, help="cosign's private key: a file or a KMS; its password is in COSIGN_PASSWORD"
    )
    published.add_argument(
        "--untagged", action="store_true", help="for tests: allow uncommitted changes, or a commit without a tag"
    )
    verified = add("verify", _verify, "check the signatures and digests of a published release")
    verified.add_argument("version", metavar="X.Y.Z")
    verified.add_argument("--registry", required=True, help="host with an optional path")
    verified.add_argument("--key", required=True, help="the public key, cosign.pub")
    return parser


def _version(_: argparse.Namespace) -> None:
    wanted = project_version()
    for place in places():
        print(f"{place.version}  {place.file}:{place.line}")
    differing = [place for place in places() if place.version != wanted]
    if differing:
        named = ", ".join(f"{place.file}:{place.line}" for place in differing)
        raise ReleaseError("VersionsDiffer", f"not {wanted}: {named}; run `python -m release tag {wanted}`")


def _tag(options: argparse.Namespace) -> None:
    print(tag(options.version))


def _build(options: argparse.Namespace) -> None:
    release = Release.of_checkout(options.into, options.registry)
    images = [] if options.without_images else image_artefacts(release, options.images)
    for image in images:
        make(release, image)
    digests = {image.name: layout_digest(release.folder / OCI / image.name, release.version) for image in images}
    for artefact in file_artefacts(release, digests):
        make(release, artefact)
    pack(release, [image.name for image in images])
    for image in images:
        print("\n".join(layers_table(release.folder / OCI / image.name)))
    print(
        f"Consumer Fleet {release.version} is in {release.folder}; check it with `sha256sum --check SHA256SUMS` there"
    )


def _publish(options: argparse.Namespace) -> None:
    publish(options.folder.absolute(), options.key, untagged=options.untagged)


def _verify(options: argparse.Namespace) -> None:
    for name, digest in verify(Registry(options.registry), options.version, options.key).items():
        print(f"{digest}  {name}")
