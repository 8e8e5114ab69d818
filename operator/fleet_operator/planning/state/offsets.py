"""The offsets part of a group's state: until when the commits of the empty group are kept, and from when on it is known
what was done to them."""

from __future__ import annotations

from dataclasses import dataclass

from fleet_operator.planning.state.sizing import Time


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetsState:
    """Times are epoch seconds.

    - `kept_at`: the last visit of the empty group, by which its commits are safe until `safe_until`; None for a group
      that has members, or none to keep.
    - `assignor`: the assignor that the group was last seen with: a visitor has to name it.
    - `began`: when this memory began. `inherited`: the group had commits then, of which nothing is remembered; None
      until it was observed.
    """

    kept_at: Time | None = None
    safe_until: Time | None = None
    assignor: str = ""
    began: Time | None = None
    inherited: bool | None = None
