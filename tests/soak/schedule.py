"""The next action of the soak: a pure choice from a seed and the state of the world."""

from __future__ import annotations

import random
from dataclasses import dataclass

__all__ = ["Action", "Bounce", "Join", "Kill", "Leave", "Sleep", "World", "choose"]

BROKER_FAULTS = ("stop", "kill", "pause")


@dataclass(frozen=True, slots=True)
class World:
    """The state that the choice depends on. `awake` and `asleep` are members that may be harmed; others are left alone.

    `vacant` are instance ids that nobody has. `brokers` are the nodes that may be bounced, none while one is away.
    """

    awake: tuple[str, ...]
    asleep: tuple[str, ...]
    vacant: tuple[str, ...]
    brokers: tuple[int, ...]
    least: int
    most: int


@dataclass(frozen=True, slots=True)
class Join:
    """A new member, static with an instance id."""

    instance_id: str | None


@dataclass(frozen=True, slots=True)
class Leave:
    """A member closes in order."""

    member: str


@dataclass(frozen=True, slots=True)
class Kill:
    """SIGKILL."""

    member: str


@dataclass(frozen=True, slots=True)
class Sleep:
    """SIGSTOP, and SIGCONT after so many seconds: some shorter, some longer than a session."""

    member: str
    seconds: float


@dataclass(frozen=True, slots=True)
class Bounce:
    """A broker goes, in one of `BROKER_FAULTS`, and is back after so many seconds."""

    node: int
    how: str
    seconds: float


Action = Join | Leave | Kill | Sleep | Bounce


def choose(chance: random.Random, world: World) -> Action | None:
    """Choose one of the actions that the world allows, all kinds equally likely; None if it allows none."""
    present = len(world.awake) + len(world.asleep)
    options: list[str] = []
    if present < world.most:
        # Joins make up for both ways of going.
        options += ["join", "join"]
    if world.awake and present > world.least:
        options += ["leave", "kill"]
    if world.awake:
        options.append("sleep")
    if world.brokers:
        options.append("bounce")
    if not options:
        return None
    kind = chance.choice(options)
    if kind == "join":
        static = bool(world.vacant) and chance.random() < 0.5
        return Join(chance.choice(world.vacant) if static else None)
    if kind == "bounce":
        return Bounce(chance.choice(world.brokers), chance.choice(BROKER_FAULTS), chance.uniform(1, 8))
    member = chance.choice(world.awake)
    if kind == "sleep":
        return Sleep(member, chance.uniform(1, 15))
    return Leave(member) if kind == "leave" else Kill(member)
