"""From the name in a configuration to an assignor."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping

from fleet_consumer.assignors.interface import Assignor
from fleet_consumer.assignors.range import RangeAssignor
from fleet_consumer.assignors.roundrobin import RoundRobinAssignor
from fleet_consumer.assignors.sticky import CooperativeStickyAssignor, StickyAssignor

BUILT_IN: Mapping[str, Callable[[], Assignor]] = {
    "range": RangeAssignor,
    "roundrobin": RoundRobinAssignor,
    "sticky": StickyAssignor,
    "cooperative-sticky": CooperativeStickyAssignor,
}


class AssignorUnknown(Exception):
    """No assignor by that name: not built in, or its module or class cannot be loaded."""

    reason = "AssignorUnknown"


def load(name: str) -> Assignor:
    """A new assignor: built in (a name of BUILT_IN), or a user's own as `package.module:Class`.

    Raises AssignorUnknown, whose message says what was looked for and how to name it.
    """
    if name in BUILT_IN:
        return BUILT_IN[name]()
    module_name, colon, class_name = name.partition(":")
    if not colon:
        known = ", ".join(sorted(BUILT_IN))
        raise AssignorUnknown(f"no assignor {name!r}: use one of {known}, or 'package.module:Class'")
    try:
        factory = getattr(importlib.import_module(module_name), class_name)
    except (ImportError, AttributeError) as cause:
        raise AssignorUnknown(f"cannot load assignor {name!r}: {cause}") from cause
    assignor: Assignor = factory()
    missing = [word for word in ("name", "protocol", "assign", "on_assignment") if not hasattr(assignor, word)]
    if missing:
        raise AssignorUnknown(f"{name!r} is no assignor: it lacks {', '.join(missing)}")
    return assignor
