"""The command line of releases."""

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
    """Run one command; exits with 1 and a message if it fails."""
    options = _parser().parse_args(arguments)
    try:
        options.run(options)
    except (ReleaseError, ClusterError) as error:
        raise SystemExit(f"error: {error}") from error
    except KeyboardInterrupt:
        raise SystemExit("interrupted; the same command continues from here") from None


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m release", description=DESCRIPTION)
    commands = parser.add_subparsers(metavar="COMMAND", required=True)

    def add(name: str, run: Callable[[argparse.Namespace], None], text: str) -> Any:
        added = commands.add_parser(name, help=text, description=text)
        added.set_defaults(run=run)
        return added

    add("version", _version, "print the version and every place that states it")
    tagged = add("tag", _tag, "write a version to every place; once that is committed, create the tag")
    tagged.add_argument("version", metavar="X.Y.Z")
    built = add("build", _build, "build the artefacts into a folder; those that are there already are kept")
    built.add_argument("--into", type=Path, required=True, metavar="DIR")
    built.add_argument(
        "--registry", required=True, help="the registry that the chart names: a host with an optional path"
    )
    which = built.add_mutually_exclusive_group()
    which.add_argument(
        "--without-images", action="store_true", help="only the files and the chart, in a minute; never published"
    )
    which.add_argument(
        "--images",
        type=Path,
        metavar="DIR",
        help="OCI layouts of the images, made by another builder (default: build them)",
    )
    published = add("publish", _publish, "push a build to its registry and sign it; repeating it changes nothing")
    published.add_argument("folder", type=Path, metavar="DIR")
    published.add_argument(
        "--key", required=True, help="cosign's private key: a file or a KMS; its password is in COSIGN_PASSWORD"
    )
    published.add_argument(
        "--untagged", action="store_true", help="for tests: also a build of changed files, or of a commit without tag"
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
