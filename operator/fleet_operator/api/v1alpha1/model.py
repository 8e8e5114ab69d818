"""Base class of the API models, and types that several kinds share: object metadata, references and offsets.

The API server has already validated, pruned and defaulted each object. Unknown keys are ignored, because a newer CRD
may have fields that this operator does not know. The models repeat the CRDs' defaults and bounds, because tests and
tools build objects without an API server. A test compares the CRDs with the models.

Decision: docs/decisions/0036-api-conventions.md.
"""

from typing import Annotated, Any, Final, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator
from pydantic.alias_generators import to_camel
from pydantic_core import PydanticCustomError

GROUP: Final = "consumerfleet.io"
API_VERSION: Final = f"{GROUP}/v1alpha1"

PAUSED_ANNOTATION: Final = "consumerfleet.io/paused"
RETRY_ROLLOUT_ANNOTATION: Final = "consumerfleet.io/retry-rollout"
"""Annotation of a ConsumerGroup. A refused revision is tried again when the annotation's value changes."""
ADOPT_ANNOTATION: Final = "consumerfleet.io/adopt"
"""Annotation that lets a ConsumerGroup adopt the fleet of a deleted ConsumerGroup of the same name."""
CANARY_LABEL: Final = "consumerfleet.io/canary"
"""Label of ConsumerGroups that are upgraded first when upgrades run in waves."""
CREDENTIALS_LABEL: Final = "consumerfleet.io/credentials"
ALLOWED_ADDRESSES_ANNOTATION: Final = "consumerfleet.io/allowed-addresses"
"""Annotation of a Secret: a comma-separated list of the bootstrap servers and token endpoints to which the operator may
send the Secret's credentials."""
HANDLER_LABEL: Final = "consumerfleet.io/handler"

TOO_LARGE: Final = "specTooLarge"
"""Field that replaces the largest fields of an oversized spec in the cache; its value is a message for the owner. Also
the type of the validation error."""

INT32_MAX: Final = 2**31 - 1
JSON_INTEGER_MAX: Final = 2**53 - 1
"""The largest integer that every JSON parser represents exactly."""

Phase = Literal[
    "Pending", "Resolving", "StoppingWorkers", "Committing", "Running", "Paused", "Succeeded", "Failed", "Cancelled"
]
FINAL_PHASES: Final = frozenset({"Succeeded", "Failed", "Cancelled"})
"""Phases of a run that has ended. They are permanent, except for a Backfill that a retry reopens."""

ObjectName = Annotated[str, Field(min_length=1, max_length=253, pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$")]
TopicName = Annotated[str, Field(min_length=1, max_length=249, pattern=r"^[a-zA-Z0-9._-]+$")]
CallableName = Annotated[
    str, Field(max_length=512, pattern=r"^[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*:[A-Za-z_][A-Za-z0-9_.]*$")
]
"""A Python callable as `module:name`."""
PartitionNumber = Annotated[int, Field(ge=0, le=INT32_MAX)]
Offset = Annotated[int, Field(ge=0, le=JSON_INTEGER_MAX)]
QUANTITY: Final = r"^[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([KMGTPE]i|[numkMGTPE]|[eE][+-]?[0-9]+)?$"
"""Pattern of the quantities that the CEL function `isQuantity` accepts; the CRDs use this function for these fields."""
Quantity = Annotated[str, Field(max_length=16, pattern=QUANTITY, coerce_numbers_to_str=True)]
"""A Kubernetes quantity, such as 512Mi, 500m or 2. The CRDs limit the value; this model checks only the form."""


class Model(BaseModel):
    """Base class of immutable API values, with camelCase names in JSON and snake_case names in Python."""

    model_config = ConfigDict(frozen=True, alias_generator=to_camel, populate_by_name=True, extra="ignore")

    def __deepcopy__(self, memo: dict[int, Any] | None = None) -> Self:
        """Return self, because the value is immutable. Otherwise, each validation would copy defaults that contain a
        dict."""
        return self


class ObjectReference(Model):
    """Reference to an object in the same namespace, by name."""

    name: ObjectName


class PartitionOffset(Model):
    """An offset in a partition: of one record, or of the next record to read."""

    topic: TopicName
    partition: PartitionNumber
    offset: Offset


class ObjectMeta(Model):
    """The fields of an object's `metadata` that the operator reads."""

    name: str
    namespace: str = "default"
    uid: str = ""
    generation: int = 0
    creation_timestamp: str | None = None
    deletion_timestamp: str | None = None
    labels: dict[str, str] = Field(default_factory=dict)
    annotations: dict[str, str] = Field(default_factory=dict)


class CustomResource(Model):
    """Base class of the custom resources. `status` is a plain dict; only the code that writes it knows its fields."""

    metadata: ObjectMeta
    status: dict[str, Any] = Field(default_factory=dict)

    @model_validator(mode="before")
    @classmethod
    def _refuse_cut(cls, body: Any) -> Any:
        if isinstance(body, dict) and TOO_LARGE in body:
            raise PydanticCustomError(TOO_LARGE, "{text}", {"text": body[TOO_LARGE]})
        return body


class RunSpec(Model):
    group_ref: ObjectReference
    dry_run: bool = False
    ttl_seconds_after_finished: Annotated[int, Field(ge=0, le=INT32_MAX)] | None = None


class RunResource(CustomResource):
    """A Redrive, a Backfill or an OffsetReset. A run is carried out once, and its status outlives its children."""

    spec: RunSpec

    @property
    def group_key(self) -> tuple[str, str]:
        return self.metadata.namespace, self.spec.group_ref.name

    @property
    def is_final(self) -> bool:
        return self.status.get("phase") in FINAL_PHASES

    @property
    def is_reopened(self) -> bool:
        """True if the run has failed and the user requested a retry. Only a Backfill can be retried."""
        return False
