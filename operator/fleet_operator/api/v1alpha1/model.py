"""Parts that all kinds share: the base of the models, object metadata, references.

The API server has already validated, pruned and defaulted what is read. Unknown keys are ignored: a newer CRD may know
more fields than this operator. Defaults and bounds are repeated here because tests and tools build objects without a
server; a parity test compares the CRDs with the models.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator
from pydantic.alias_generators import to_camel
from pydantic_core import PydanticCustomError

GROUP: Final = "consumerfleet.io"
VERSION: Final = "v1alpha1"
API_VERSION: Final = f"{GROUP}/{VERSION}"

PAUSED_ANNOTATION: Final = "consumerfleet.io/paused"
RETRY_ROLLOUT_ANNOTATION: Final = "consumerfleet.io/retry-rollout"
"""A refused revision is tried again when this text changes."""
ADOPT_ANNOTATION: Final = "consumerfleet.io/adopt"
"""Takes over the fleet of a former ConsumerGroup of the same name."""
CANARY_LABEL: Final = "consumerfleet.io/canary"
"""Groups that go first when upgrades come in waves."""
CREDENTIALS_LABEL: Final = "consumerfleet.io/credentials"
ALLOWED_ADDRESSES_ANNOTATION: Final = "consumerfleet.io/allowed-addresses"
"""On a Secret: the only bootstrap servers and token endpoints that it may be sent to, separated by commas."""
HANDLER_LABEL: Final = "consumerfleet.io/handler"

TOO_LARGE: Final = "specTooLarge"
"""Field of a cached object from whose spec something was cut, with the message for its owner; also that error's type.
"""

INT32_MAX: Final = 2**31 - 1
JSON_INTEGER_MAX: Final = 2**53 - 1
"""The largest whole number that every reader of JSON keeps as it is."""

Phase = Literal[
    "Pending", "Resolving", "StandingDown", "Committing", "Running", "Paused", "Succeeded", "Failed", "Cancelled"
]
FINAL_PHASES: Final = frozenset({"Succeeded", "Failed", "Cancelled"})
"""Phases that a run never leaves."""

ObjectName = Annotated[str, Field(min_length=1, max_length=253, pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$")]
TopicName = Annotated[str, Field(min_length=1, max_length=249, pattern=r"^[a-zA-Z0-9._-]+$")]
CallableName = Annotated[
    str, Field(max_length=512, pattern=r"^[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*:[A-Za-z_][A-Za-z0-9_.]*$")
]
"""A Python callable: its module, and its name there."""
PartitionNumber = Annotated[int, Field(ge=0, le=INT32_MAX)]
Offset = Annotated[int, Field(ge=0, le=JSON_INTEGER_MAX)]
QUANTITY: Final = r"^[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([KMGTPE]i|[numkMGTPE]|[eE][+-]?[0-9]+)?$"
"""Pattern of the quantities that `isQuantity` takes, the function by which the CRDs check these fields."""
Quantity = Annotated[str, Field(max_length=16, pattern=QUANTITY, coerce_numbers_to_str=True)]
"""A quantity of Kubernetes, such as 512Mi, 500m or 2; bounds are in the CRDs only."""


class Model(BaseModel):
    """A frozen value of the API, named in camelCase outside and in snake_case inside."""

    model_config = ConfigDict(frozen=True, alias_generator=to_camel, populate_by_name=True, extra="ignore")

    def __deepcopy__(self, memo: dict[int, Any] | None = None) -> Self:
        """The value itself: nobody changes it. pydantic copies each default that holds a dict, at each validation."""
        return self


class ObjectReference(Model):
    """An object of the same namespace, by name."""

    name: ObjectName


class PartitionOffset(Model):
    """An offset in a partition of a topic: that of a record, or of the next one to read."""

    topic: TopicName
    partition: PartitionNumber
    offset: Offset


class ObjectMeta(Model):
    """The parts of metadata that the operator reads."""

    name: str
    namespace: str = "default"
    uid: str = ""
    generation: int = 0
    creation_timestamp: str | None = None
    deletion_timestamp: str | None = None
    labels: dict[str, str] = Field(default_factory=dict)
    annotations: dict[str, str] = Field(default_factory=dict)


class CustomResource(Model):
    """One custom resource: `status` stays a plain dict, because only the projection that writes it knows its shape."""

    metadata: ObjectMeta
    status: dict[str, Any] = Field(default_factory=dict)

    @model_validator(mode="before")
    @classmethod
    def _refuse_cut(cls, body: Any) -> Any:
        if isinstance(body, dict) and TOO_LARGE in body:
            raise PydanticCustomError(TOO_LARGE, "{text}", {"text": body[TOO_LARGE]})
        return body


class RunSpec(Model):
    """Fields of every run: its ConsumerGroup, and how long it is kept after its end."""

    group_ref: ObjectReference
    dry_run: bool = False
    ttl_seconds_after_finished: Annotated[int, Field(ge=0, le=INT32_MAX)] | None = None


class RunResource(CustomResource):
    """A Redrive, a Backfill or an OffsetReset: something is done once, and its status outlives what was made for it."""

    spec: RunSpec

    @property
    def group_key(self) -> tuple[str, str]:
        return self.metadata.namespace, self.spec.group_ref.name

    @property
    def is_final(self) -> bool:
        return self.status.get("phase") in FINAL_PHASES

    @property
    def is_reopened(self) -> bool:
        """True if the run has failed and is to go on all the same."""
        return False
