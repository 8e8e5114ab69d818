"""Answers of programs that a release runs: what they say is named correctly, and none but cosign sees the key."""

from __future__ import annotations

from pathlib import Path

import pytest

from e2e.local_cluster.gomodules import GoPrograms
from release.errors import ReleaseError
from release.registry import Registry
from release.version import command

REGISTRY = Registry("registry.example.com/fleet")
REFERENCE = "registry.example.com/fleet/consumer-fleet:1.2.3"
HELPER = (
    'Error: Head "https://registry.example.com/v2/": exec: "docker-credential-x": executable file not found in $PATH'
)
SECRETS = {"COSIGN_KEY": "the-key", "COSIGN_PASSWORD": "the-password"}


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder in which the release finds oras and cosign."""

    def ensure(_: GoPrograms) -> Path:
        return tmp_path

    monkeypatch.setattr("release.registry.ensure_programs", ensure)
    return tmp_path


def write(program: Path, script: str) -> None:
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)


@pytest.mark.parametrize(
    "answer",
    [
        f"Error response from registry: failed to resolve digest: {REFERENCE}: not found",
        "Error response from registry: name unknown: repository name not known to registry",
        "Error response from registry: recognizable error message not found: manifest unknown",
    ],
)
def test_tag_that_the_registry_does_not_have_is_none(programs: Path, answer: str) -> None:
    write(programs / "oras", f"echo '{answer}' >&2; exit 1")
    assert REGISTRY.digest("consumer-fleet", "1.2.3") is None


@pytest.mark.parametrize(
    "answer", [HELPER, "Error: open /etc/ssl/authority.crt: file not found", f"Error: {REFERENCE}: not found here"]
)
def test_anything_else_that_is_not_found_is_an_error(programs: Path, answer: str) -> None:
    """A missing program or file does not tell that a version was never published."""
    write(programs / "oras", f"echo '{answer}' >&2; exit 1")
    with pytest.raises(ReleaseError) as refused:
        REGISTRY.digest("consumer-fleet", "1.2.3")
    assert refused.value.reason == "RegistryFailed"
    assert answer in refused.value.message


def test_only_cosign_gets_the_key_and_its_password(programs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {**SECRETS, "DOCKER_CONFIG": "/login"}.items():
        monkeypatch.setenv(name, value)
    write(programs / "oras", "env")
    write(programs / "cosign", "env >&2; exit 1")
    with pytest.raises(ReleaseError) as shown:
        REGISTRY.verify("consumer-fleet", "sha256:0", "cosign.pub")
    seen = {
        "oras": str(REGISTRY.digest("consumer-fleet", "1.2.3")),
        "another program": command(["env"], programs),
        "cosign": shown.value.message,
    }
    for program, text in seen.items():
        has = {value for value in SECRETS.values() if value in text}
        assert has == (set(SECRETS.values()) if program == "cosign" else set()), program
        assert "DOCKER_CONFIG=/login" in text, program
