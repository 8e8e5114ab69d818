"""Shapes of curves: steps, ramps, days, noise, waves, jobs. Pure; noise has a seed."""

from __future__ import annotations

import math
import random

from bench.simulate.world import Curve, constant


def steps(*points: tuple[float, float]) -> Curve:
    """Values that hold from a second on."""
    return lambda at: next(value for begin, value in reversed(points) if at >= begin)


def ramp(low: float, high: float, begin: float, end: float) -> Curve:
    """A straight line between two seconds."""
    return lambda at: low + (high - low) * min(1.0, max(0.0, (at - begin) / (end - begin)))


def noisy(mean: float, deviation: float, seed: int, length: float = 7.0) -> Curve:
    """Bursts of some seconds about a mean, with a standard deviation that is a part of it."""
    chance = random.Random(seed)
    bursts = [max(0.0, chance.gauss(1.0, deviation)) for _ in range(3000)]
    return lambda at: mean * bursts[int(at / length) % len(bursts)]


def day(low: float, high: float, length: float, noise: Curve | None = None) -> Curve:
    """A day in so many seconds: low at night, high at noon."""
    factor = noise or constant(1.0)
    return lambda at: (low + (high - low) * (1.0 - math.cos(2.0 * math.pi * at / length)) / 2.0) * factor(at)


def wave(low: float, high: float, length: float, every: float, then: float, later: float) -> Curve:
    """A high load for some seconds of each interval, and from a second on a constant one."""
    return lambda at: later if at >= then else high if at % every < length else low


def jobs(rate: float, length: float, every: float, then: float, later: float) -> Curve:
    """A job of some seconds in each interval and nothing between, and from a second on a constant load."""
    return wave(0.0, rate, length, every, then, later)


def batches(size: float, every: float, within: float = 20.0) -> Curve:
    """So many records within some seconds of each interval."""
    return lambda at: size / within if at % every < within else 0.0
