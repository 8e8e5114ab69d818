"""An operator of two namespaces, one of which takes its rights away: the other is served all the time."""

from __future__ import annotations

import json
import re
import urllib.request
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from tests.apiserver import objects
from tests.apiserver.conftest import PATIENCE_S, Operator, Site
from tests.support.apiserver import ApiServer
from tests.support.waiting import eventually

RIGHTS = "operator"


def account(here: Site, folder: Path) -> ApiServer:
    """The API server as a service account without rights sees it."""
    here.kubectl("create", "serviceaccount", RIGHTS)
    config = json.loads(here.api.kubectl("config", "view", "--raw", "--flatten", "-o", "json"))
    config["users"][0]["user"] = {"token": here.kubectl("create", "token", RIGHTS).strip()}
    path = folder / "account.conf"
    path.write_text(json.dumps(config))
    return cast("ApiServer", SimpleNamespace(kubeconfig=path))


def grant(here: Site, owner: Site) -> None:
    account_of = f"--serviceaccount={owner.name}:{RIGHTS}"
    here.kubectl("create", "rolebinding", RIGHTS, "--clusterrole=cluster-admin", account_of)


def is_served(here: Site, name: str) -> None:
    here.apply(objects.group(here.name, name=name))
    here.wait_condition("consumergroups", name, "Ready", status="False", reason="ClusterNotFound")


def readiness(operator: Operator) -> str:
    (port,) = re.findall(r"health_port=(\d+)", operator.log.read_text())
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=PATIENCE_S) as answer:
        return str(answer.read().decode().strip())


def logged(operator: Operator, *words: str) -> bool:
    return any(all(word in line for word in words) for line in operator.log.read_text().splitlines())


def test_namespace_that_withdraws_its_rights_harms_no_other(quiet_site: Callable[..., Site], tmp_path: Path) -> None:
    shop, bank = quiet_site("shop"), quiet_site("bank")
    limited = account(shop, tmp_path)
    grant(shop, shop)
    served = ("--namespace", bank.name, "--namespace", shop.name, "--sweep-seconds", "1")
    with Operator(limited, *served) as operator:
        wait: Any = partial(eventually, timeout_s=PATIENCE_S)
        is_served(shop, "first")
        assert readiness(operator) == "ok"
        assert logged(operator, "cannot list yet", f"namespace='{bank.name}'")
        assert not logged(operator, "cannot list yet", f"namespace='{shop.name}'")
        grant(bank, shop)
        is_served(bank, "first")
        bank.kubectl("delete", "rolebinding", RIGHTS)
        before = operator.log.read_text().count("cannot list yet")
        wait(lambda: operator.log.read_text().count("cannot list yet") > before, what="the refusal to be seen")
        is_served(shop, "second")
        assert not logged(operator, "a deletion was missed"), "what is refused is not gone"
        grant(bank, shop)
        is_served(bank, "second")
        assert operator.stop() == 0
