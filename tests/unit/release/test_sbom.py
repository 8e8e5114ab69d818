"""SBOMs: what the locks pin, and what the layers of an image hold after all of them."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from release.errors import ReleaseError
from release.sbom import locked, of_distribution, of_image, read_contents, read_layout
from release.version import ROOT
from tests.unit.release.layouts import layer, layout

STATUS = """Package: libc6
Status: install ok installed
Architecture: amd64
Version: 2.36-9

Package: gone
Status: deinstall ok config-files
Architecture: amd64
Version: 1
"""
SITE = "opt/fleet/lib/python3.11/site-packages"


def metadata(name: str, version: str) -> str:
    return f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n\nName: not this one\n"


def test_sbom_of_an_image_lists_what_the_last_layer_left(tmp_path: Path) -> None:
    lower = layer(
        {
            "var/lib/dpkg/status": STATUS,
            f"{SITE}/yarl-1.0.dist-info/METADATA": metadata("yarl", "1.0"),
            f"{SITE}/old-1.0.dist-info/METADATA": metadata("old", "1.0"),
            f"{SITE}/pyspark/jars/spark-core_2.13-4.0.0.jar": "jar",
            f"{SITE}/pyspark/jars/mesos-1.4.jar": "unused",
        }
    )
    upper = layer(
        {
            f"{SITE}/.wh.old-1.0.dist-info": "",
            f"{SITE}/pyspark/jars/.wh.mesos-1.4.jar": "",
            f"{SITE}/consumer_fleet-0.1.dist-info/METADATA": metadata("Consumer-Fleet", "0.1"),
        }
    )
    ((architecture, digest, layers),) = read_layout(layout(tmp_path, [lower, upper], {"architecture": "arm64"}))
    assert architecture == "arm64"
    found = json.loads(of_image("consumer-fleet-spark", "0.1", digest, read_contents(layers), 0))
    assert sorted(each.get("purl", each["name"]) for each in found["components"]) == [
        "pkg:deb/debian/libc6@2.36-9?arch=amd64",
        "pkg:pypi/consumer-fleet@0.1",
        "pkg:pypi/yarl@1.0",
        "spark-core_2.13",
    ]
    (jar,) = [each for each in found["components"] if "hashes" in each]
    assert (jar["version"], jar["hashes"][0]["content"]) == ("4.0.0", hashlib.sha256(b"jar").hexdigest())
    assert digest.removeprefix("sha256:") in found["metadata"]["component"]["purl"]


def test_layout_without_an_image_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ReleaseError) as refused:
        list(read_layout(layout(tmp_path, [], {})))
    assert refused.value.reason == "NotAnImage"


def test_sbom_of_the_distribution_has_every_pinned_package_with_its_users() -> None:
    texts = [(ROOT / "requirements" / f"{lock}.txt").read_text() for lock in ("operator", "consumer", "spark")]
    packages = locked(texts)
    pins = {line.partition("==")[0] for text in texts for line in text.splitlines() if "==" in line}
    assert set(packages) == pins
    assert all(users for _, users in packages.values())
    found = json.loads(of_distribution("consumer-fleet", "0.1", packages, 0))
    needs = {each["ref"]: each.get("dependsOn", []) for each in found["dependencies"]}
    (aiohttp,) = [ref for ref in needs if ref.startswith("pypi/aiohttp@")]
    assert any(each.startswith("pypi/yarl@") for each in needs[aiohttp])
    assert any(each.startswith("pypi/confluent-kafka@") for each in needs["subject"])
    assert not any(each.startswith("pypi/yarl@") for each in needs["subject"])


def test_sbom_of_the_same_packages_is_the_same() -> None:
    packages = locked(["yarl==1.0\n    # via aiohttp\naiohttp==2.0\n    # via consumer-fleet (pyproject.toml)\n"])
    assert packages["yarl"] == ("1.0", frozenset({"aiohttp"}))
    first, second = (of_distribution("consumer-fleet", "0.1", packages, 0) for _ in range(2))
    assert first == second
