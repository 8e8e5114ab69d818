"""RetryPolicy (`krp`): rules for failed records. Several ConsumerGroups can use the same RetryPolicy."""

from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from fleet_consumer.contract import naming
from fleet_consumer.contract.policies import ATTEMPTS_MAX, RULES_MAX
from fleet_operator.api.v1alpha1.model import INT32_MAX, CustomResource, Model


def _checked_delay(text: str) -> str:
    naming.parse_delay(text)
    return text


Delay = Annotated[str, Field(min_length=2, max_length=7), AfterValidator(_checked_delay)]
"""A delay as the user wrote it, such as 90s. The expansion of the policy converts it to its shortest form."""


class Generate(Model):
    """Parameters of a series of delays: each delay is `factor_percent` of the previous one, at most `max`."""

    initial: Delay
    factor_percent: Annotated[int, Field(ge=100, le=10_000)] = 200
    max: Delay = "1h"
    count: Annotated[int, Field(ge=1, le=ATTEMPTS_MAX)]


class When(Model):
    """Condition of a rule; exactly one of the three fields is set."""

    exception: Annotated[str, Field(min_length=1, max_length=253)] | None = None
    http_status: Annotated[str, Field(min_length=3, max_length=3)] | None = None
    message_regex: Annotated[str, Field(min_length=1, max_length=512)] | None = None


class Rule(Model):
    when: When
    then: Literal["Retry", "Fail", "Drop"]


class Budget(Model):
    """The failure rate at which the breaker opens, and the action of the open breaker."""

    max_failure_percent: Annotated[int, Field(ge=1, le=100)] = 50
    window_seconds: Annotated[int, Field(ge=1, le=3600)] = 60
    min_records: Annotated[int, Field(ge=1, le=1_000_000)] = 100
    action: Literal["Pause", "Fail", "None"]
    cooldown_seconds: Annotated[int, Field(ge=1, le=3600)] = 30


class RetryPolicySpec(Model):
    sequence: Annotated[tuple[Delay, ...], Field(min_length=1, max_length=ATTEMPTS_MAX)] | None = None
    generate: Generate | None = None
    classify: Annotated[tuple[Rule, ...], Field(max_length=RULES_MAX)] = ()
    undecodable: Literal["Fail", "Drop"] = "Fail"
    max_total_seconds: Annotated[int, Field(ge=1, le=INT32_MAX)] | None = None
    header_profile: Literal["Native", "Spring"] = "Native"
    budget: Budget | None = None


class RetryPolicy(CustomResource):
    spec: RetryPolicySpec
