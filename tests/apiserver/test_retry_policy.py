"""The status of a RetryPolicy, and its stored revisions."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.apiserver import objects
from tests.apiserver.conftest import PATIENCE_S, Site
from tests.support.waiting import eventually

pytestmark = [pytest.mark.usefixtures("operator"), pytest.mark.together]

MakeSite = Callable[..., Site]


def records_of(here: Site) -> list[str]:
    return here.names("configmaps", "consumerfleet.io/retry-policy=standard")


def wait_record(here: Site) -> None:
    """Wait until exactly the policy's revision is recorded."""

    def recorded() -> bool:
        assert records_of(here) == [f"standard-{revision_of(here)}"], records_of(here)
        return True

    eventually(recorded, timeout_s=PATIENCE_S, what="one record")


def revision_of(here: Site) -> str:
    return str(here.get("retrypolicies", "standard")["status"]["revision"])


def groups_of(here: Site) -> int:
    return int(here.get("retrypolicies", "standard")["status"]["groupCount"])


def ready(here: Site, *, status: str = "True", reason: str = "PolicyAccepted") -> str:
    return str(here.wait_condition("retrypolicies", "standard", "Ready", status=status, reason=reason)["message"])


def test_status_shows_the_expanded_policy(site: MakeSite) -> None:
    here = site("policy")
    here.apply(objects.policy(here.name, "5m", "300s", "30m", "30m", "60m"), objects.group(here.name))
    assert ready(here) == "5 attempts after the first, over 2h10m"
    status = here.get("retrypolicies", "standard")["status"]
    shown = (status["delaysText"], status["attempts"], status["totalText"], status["groupCount"])
    assert shown == ("5m,5m,30m,30m,1h", 5, "2h10m", 0)
    wait_record(here)
    here.apply(
        objects.group(here.name, retry=objects.retry()), objects.group(here.name, name="b", retry=objects.retry())
    )
    eventually(lambda: groups_of(here) == 2, timeout_s=PATIENCE_S, what="2 groups")
    here.apply(objects.group(here.name))
    here.kubectl("delete", "kcg/b")
    eventually(lambda: groups_of(here) == 0, timeout_s=PATIENCE_S, what="none")
    wide = here.kubectl("get", "krp")
    assert wide.split() == [
        *("NAME", "READY", "REASON", "DELAYS", "ATTEMPTS", "TOTAL", "GROUPS", "AGE"),
        *("standard", "True", "PolicyAccepted", "5m,5m,30m,30m,1h", "5", "2h10m", "0", wide.split()[-1]),
    ]


def test_generated_series_is_written_out(site: MakeSite) -> None:
    here = site("policy")
    here.apply(objects.policy(here.name, generate={"initial": "10s", "factorPercent": 300, "max": "5m", "count": 5}))
    ready(here)
    assert here.get("retrypolicies", "standard")["status"]["delaysText"] == "10s,30s,90s,270s,5m"


def test_invalid_content_keeps_the_last_good_one(site: MakeSite) -> None:
    here = site("policy")
    here.apply(objects.policy(here.name, "5m"))
    ready(here)
    good = revision_of(here)
    here.apply(objects.policy(here.name, *(f"{second}s" for second in range(1, 18))))
    message = ready(here, status="False", reason="TooManyDelays")
    assert "17 different delays" in message
    assert f"groups keep revision {good}" in message
    here.apply(
        objects.policy(here.name, "5m", classify=[{"when": {"messageRegex": "[\\p{L}]{1,100}"}, "then": "Fail"}])
    )
    assert "too large" in ready(here, status="False", reason="MessageRegexRefused")
    assert revision_of(here) == good
    wait_record(here)


def test_unused_revision_is_not_kept(site: MakeSite) -> None:
    here = site("policy")
    here.apply(objects.policy(here.name, "5m"))
    ready(here)
    first = revision_of(here)
    here.apply(objects.policy(here.name, "6m"))
    eventually(lambda: revision_of(here) != first, timeout_s=PATIENCE_S, what="another revision")
    wait_record(here)
