"""Loading and validation of built-in and users' assignors.

A user's assignor is validated when it is loaded, because an error during a rebalance would stop every member of the
group.
"""

import importlib
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any, Final

from fleet_consumer.assignors.interface import EAGER, Assignor, RebalanceProtocol
from fleet_consumer.assignors.range import RangeAssignor
from fleet_consumer.assignors.roundrobin import RoundRobinAssignor
from fleet_consumer.assignors.sticky import CooperativeStickyAssignor, StickyAssignor
from fleet_consumer.assignors.weighted import CooperativeWeightedAssignor

BUILT_IN: Mapping[str, Callable[[], Assignor]] = {
    "range": RangeAssignor,
    "roundrobin": RoundRobinAssignor,
    "sticky": StickyAssignor,
    "cooperative-sticky": CooperativeStickyAssignor,
    "cooperative-weighted": CooperativeWeightedAssignor,
}

_DEFAULTS: Final[Mapping[str, Any]] = {
    "version": 0,
    "protocol": EAGER,
    "subscription_user_data": lambda topics: None,
    "on_assignment": lambda assignment, generation: None,
}
"""Java's defaults for attributes and methods that a user's assignor omits."""
_OPTIONAL: Final = ("on_rates",)
"""Optional methods without a default; they are called only if the assignor defines them."""


class AssignorUnknown(Exception):
    """No built-in assignor has this name, or the named module or class cannot be loaded."""

    reason = "AssignorUnknown"


class AssignorInvalid(AssignorUnknown):
    """An object is not a valid assignor."""

    reason = "AssignorInvalid"


def load(name: str) -> Assignor:
    """Create a built-in assignor by name, or a custom assignor from `package.module:Class`, without arguments.

    Raises AssignorUnknown if the class cannot be found or imported, AssignorInvalid if it cannot be instantiated or is
    not a valid assignor.
    """
    if name in BUILT_IN:
        return BUILT_IN[name]()
    module_name, colon, class_name = name.partition(":")
    if not (module_name and colon and class_name):
        known = ", ".join(sorted(BUILT_IN))
        raise AssignorUnknown(f"no assignor {name!r}: use one of {known}, or 'package.module:Class'")
    try:
        found: object = importlib.import_module(module_name)
        for part in class_name.split("."):
            found = getattr(found, part)
    except Exception as cause:  # importing runs the user's code, which may raise anything
        raise AssignorUnknown(f"cannot load assignor {name!r}: {type(cause).__name__}: {cause}") from cause
    if not callable(found):
        raise AssignorInvalid(f"assignor {name!r} is {type(found).__name__}, not a class; name a class")
    try:
        made = found()
    except Exception as cause:
        raise AssignorInvalid(
            f"cannot create assignor {name!r}: {type(cause).__name__}: {cause}; the class is called without arguments"
        ) from cause
    return complete(made, name)


def complete(candidate: object, label: str) -> Assignor:
    """Validate an assignor, and add defaults for missing attributes; only `name` (a string) and `assign` are required.
    `label` is the assignor's name in error messages. Raises AssignorInvalid."""
    words = ("name", "assign", *_DEFAULTS)
    own = {word: value for word in words if (value := _attribute(candidate, label, word)) is not None}
    more = {word: value for word in _OPTIONAL if (value := _attribute(candidate, label, word)) is not None}
    has = {**_DEFAULTS, **own, **more}
    missing = [word for word in ("name", "assign") if word not in has]
    if missing:
        raise AssignorInvalid(f"{label!r} is not an assignor: it lacks {' and '.join(missing)}")
    if not isinstance(has["name"], str) or not has["name"]:
        raise AssignorInvalid(f"assignor {label!r}: name is {has['name']!r}; it must be a non-empty string")
    version, protocol = has["version"], has["protocol"]
    if not isinstance(version, int) or isinstance(version, bool):
        raise AssignorInvalid(f"assignor {label!r}: version is {version!r}; it must be an int")
    if not isinstance(protocol, RebalanceProtocol):
        raise AssignorInvalid(f"assignor {label!r}: protocol is {protocol!r}; it must be EAGER or COOPERATIVE")
    for method in ("assign", "subscription_user_data", "on_assignment", *more):
        if not callable(has[method]):
            raise AssignorInvalid(f"assignor {label!r}: {method} is not callable")
    return candidate if len(own) == len(words) else SimpleNamespace(**has)  # type: ignore[return-value]


def _attribute(candidate: object, label: str, word: str) -> object:
    try:
        return getattr(candidate, word, None)
    except Exception as cause:  # a property runs the user's code, which may raise anything
        raise AssignorInvalid(f"assignor {label!r}: reading {word} raised {type(cause).__name__}: {cause}") from cause
