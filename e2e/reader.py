"""A reader of a document: saves its files and runs its commands.

`kubectl` and `helm` are the real ones. The embedded cluster's builder replaces an engine and a registry: `docker build`
builds the same Dockerfile with the same arguments, `docker push` loads the image into the cluster under its name,
`docker run` runs the command in a container of the image. `mvn` copies the jars that the tests have by the same POM.
"""

from __future__ import annotations

import re
import shlex
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from e2e.cluster import ROOT, Cluster
from e2e.local_cluster.builder import Recipe, open_builder
from e2e.local_cluster.cluster import LocalCluster
from e2e.local_cluster.instance import Instance
from e2e.local_cluster.jars import ensure_table_jars

FENCE: Final = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
NAMED_FILE: Final = re.compile(
    r"^(?:Save this as )?`(?P<name>[\w/-]+\.\w+|Dockerfile)`[^\n]*\n\n```\w*\n(?P<text>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
COMMAND_S: Final = 900.0
"""Timeout of one command; commands of pages that wait have timeouts of their own."""


def sections(page: str) -> dict[str, str]:
    """A page's sections by second-level heading; the part above the first heading has an empty one."""
    parts = re.split(r"^## (.*)$", (ROOT / page).read_text(), flags=re.MULTILINE)
    return dict(zip(["", *parts[1::2]], parts[::2], strict=True))


def commands(text: str) -> list[list[str]]:
    """The words of each line in `console` blocks."""
    blocks = [block for language, block in FENCE.findall(text) if language == "console"]
    return [shlex.split(line, comments=True) for block in blocks for line in block.splitlines() if line.strip()]


class Reader:
    """Runs commands in a folder: the clone for a page about the clone, else one with the page's files."""

    def __init__(self, cluster: Cluster, instance: Instance, page: str, files: Path, *, in_clone: bool) -> None:
        self._cluster = cluster
        self._instance = instance
        self._files = files
        self._folder = ROOT if in_clone else files
        self._images: list[str] = []
        for found in NAMED_FILE.finditer((ROOT / page).read_text()):
            path = files / found["name"]
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(found["text"])

    def types(self, words: Sequence[str], *, instead: Mapping[str, str] | None = None) -> str:
        """Run a command and return its output; `instead` replaces words. Files of the page are found by name."""
        program, *rest = [(instead or {}).get(word, word) for word in words]
        if program == "docker":
            done = {"build": self._build, "push": self._push, "run": self._run}[rest[0]](rest[1:])
            return done or ""
        if program == "mvn":
            self._collect(rest)
            return ""
        rest = [str(self._files / word) if (self._files / word).is_file() else word for word in rest]
        rest = [str(ROOT / word) if (ROOT / word).is_dir() else word for word in rest]
        programs: dict[str, Callable[..., str]] = {"kubectl": self._cluster.kubectl, "helm": self._cluster.helm}
        return programs[program](*rest, timeout_s=COMMAND_S)

    def close(self) -> None:
        """Remove the images from the builder; those in the cluster are removed with it."""
        with open_builder() as builder:
            for tag in reversed(self._images):
                builder.remove(tag)

    def _build(self, words: list[str]) -> None:
        options = dict(zip(words[:-1:2], words[1:-1:2], strict=True))
        tag, context = options.pop("--tag"), self._folder / words[-1]
        recipe = Recipe(dockerfile=self._filled(context / options.pop("--file", "Dockerfile"), options))
        assert not options, f"not an option of this reader: {options}"
        with open_builder() as builder:
            title = tag.rpartition("/")[2].partition(":")[0]
            builder.build(context, tag=tag, title=title, recipe=recipe)
        self._images.append(tag)

    def _filled(self, dockerfile: Path, options: dict[str, str]) -> Path:
        """The Dockerfile, with the argument that `--build-arg` gives as its default."""
        name, given, value = options.pop("--build-arg", "").partition("=")
        if not given:
            return dockerfile
        text, times = re.subn(rf"(?m)^ARG {name}=.*$", f"ARG {name}={value}", dockerfile.read_text())
        assert times == 1, f"{dockerfile} has no argument {name}"
        filled = self._files / "Dockerfile.filled"
        filled.write_text(text)
        return filled

    def _collect(self, words: Sequence[str]) -> None:
        """Copy the POM's folder to the reader's files, and the jars into the subfolder that the command names."""
        file, pom, goal, scope, target = words
        assert (file, goal, scope) == ("--file", "dependency:copy-dependencies", "-DincludeScope=runtime"), words
        option, _, folder = target.partition("=")
        assert option == "-DoutputDirectory", words
        shutil.copytree((ROOT / pom).parent, (self._files / pom).parent)
        shutil.copytree(ensure_table_jars(), (self._files / pom).parent / folder)

    def _push(self, words: list[str]) -> None:
        (tag,) = words
        with tempfile.TemporaryDirectory(prefix="fleet-image-") as folder:
            archive = Path(folder, "image.tar")
            with open_builder() as builder:
                builder.pack(tag, archive, name=tag)
            LocalCluster(self._instance).load_image(archive)

    def _run(self, words: list[str]) -> str:
        """Run `--rm`, with or without the host's network, which a container of the builder always has."""
        assert words[0] == "--rm", words
        tag, *command = words[3:] if words[1:3] == ["--network", "host"] else words[1:]
        with open_builder() as builder:
            return builder.run(tag, command)
