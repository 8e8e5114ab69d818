"""Go programs of the embedded cluster: one module pins them all, and a change builds again what it concerns."""

from __future__ import annotations

import re
import shutil
from dataclasses import replace
from pathlib import Path

from e2e.local_cluster import gomodules, versions
from e2e.local_cluster.gomodules import (
    COREDNS,
    ETCD,
    FOLDER,
    HELM,
    KEDA,
    KEDA_FOLDER,
    KUBERNETES,
    SPARK_OPERATOR,
    VERSITYGW,
    GoPrograms,
)
from e2e.local_cluster.jars import KAFKA, TABLES

GO_MOD = (FOLDER / "go.mod").read_text()
LIBRARIES = versions.KUBERNETES.replace("1.", "v0.", 1)


def test_module_pins_the_versions_that_the_programs_are_named_by() -> None:
    pinned = dict(re.findall(r"^\t(\S+) v([\d.]+)$", GO_MOD, re.MULTILINE))
    assert pinned == {
        "github.com/coredns/coredns": versions.COREDNS,
        "github.com/kubeflow/spark-operator/v2": versions.SPARK_OPERATOR,
        "github.com/spf13/cobra": pinned["github.com/spf13/cobra"],
        "go.etcd.io/etcd/server/v3": versions.ETCD,
        "helm.sh/helm/v4": versions.HELM,
        "k8s.io/kubernetes": versions.KUBERNETES,
    }


def test_every_library_of_kubernetes_is_of_its_release() -> None:
    """Two versions of one would be compiled twice, and a program would be tested against neither."""
    replaced = re.findall(r"^\t(k8s\.io/[\w-]+) => (\S+) (\S+)$", GO_MOD, re.MULTILINE)
    assert len(replaced) == 31
    assert {(target == name, version) for name, target, version in replaced} == {(True, LIBRARIES)}
    # Those without a release of their own to follow: their versions are dates, or count differently.
    apart = {"k8s.io/klog/v2", "k8s.io/kube-openapi", "k8s.io/utils"}
    needed = set(re.findall(r"^\t(k8s\.io/\S+) v\S+ // indirect$", GO_MOD, re.MULTILINE))
    assert needed - apart <= {name for name, _, _ in replaced}


def copied(folder: Path) -> tuple[Path, list[GoPrograms]]:
    """A copy of the module that pins the programs, and the programs as it pins them."""
    copy = shutil.copytree(FOLDER, folder / "programs")
    return copy, [replace(wanted, folder=copy) for wanted in gomodules.ALL]


def test_program_of_ours_is_built_again_when_its_source_changes_and_others_are_not(tmp_path: Path) -> None:
    copy, programs = copied(tmp_path)
    before = {wanted.name: wanted.digest() for wanted in programs}
    assert before == {wanted.name: wanted.digest() for wanted in programs}
    with (copy / "coredns" / "main.go").open("a") as source:
        source.write("// changed\n")
    assert [wanted.name for wanted in programs if wanted.digest() != before[wanted.name]] == [COREDNS.name]


def test_changed_pins_build_everything_again(tmp_path: Path) -> None:
    copy, programs = copied(tmp_path)
    before = {wanted.name: wanted.digest() for wanted in programs}
    with (copy / "go.sum").open("a") as sums:
        sums.write("changed\n")
    assert [wanted.name for wanted in programs if wanted.digest() == before[wanted.name]] == []


def test_keda_is_pinned_by_a_module_of_its_own() -> None:
    pinned = dict(re.findall(r"^require (\S+) v([\d.]+)$", (KEDA_FOLDER / "go.mod").read_text(), re.MULTILINE))
    assert pinned == {"github.com/kedacore/keda/v2": versions.KEDA}
    tools = (KEDA_FOLDER / "tools.go").read_text()
    assert {package for package in KEDA.programs.values() if f'_ "{package}"' not in tools} == set()


def test_object_store_is_pinned_by_a_module_of_its_own() -> None:
    pinned = dict(re.findall(r"^require (\S+) v([\d.]+)$", (VERSITYGW.folder / "go.mod").read_text(), re.MULTILINE))
    assert pinned == {"github.com/versity/versitygw": versions.VERSITYGW}
    tools = (VERSITYGW.folder / "tools.go").read_text()
    assert {package for package in VERSITYGW.programs.values() if f'_ "{package}"' not in tools} == set()


def test_poms_name_the_versions_that_jars_are_collected_with() -> None:
    for jars in (KAFKA, TABLES):
        named = re.findall(r"<(\w+\.version)>([\d.]+)</", jars.pom.read_text())
        assert dict(named) == jars.properties


def test_programs_of_others_are_named_in_the_file_that_keeps_their_pins() -> None:
    """`go mod tidy` drops what nothing imports."""
    tools = (FOLDER / "tools.go").read_text()
    for wanted in (ETCD, HELM, KUBERNETES):
        assert {package for package in wanted.programs.values() if f'_ "{package}"' not in tools} == set()
    for wanted in (COREDNS, SPARK_OPERATOR):
        assert [(FOLDER / package / "main.go").is_file() for package in wanted.programs.values()] == [True]
