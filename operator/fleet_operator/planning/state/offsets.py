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
    - `began`: when this memory began; None while another object owns the Kafka group. `inherited`: the group had
      commits then, of which nothing is remembered; None until it was observed after that.
    """

    kept_at: Time | None = None
    safe_until: Time | None = None
    assignor: str = ""
    began: Time | None = None
    inherited: bool | None = None

    @property
    def is_unjudged(self) -> bool:
        """True if runs wait for an observation of the group that is as old as this memory."""
        return self.began is not None and self.inherited is None
