"""The memory of the two processes over time, and whether it grows."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from bench.processes import Path

__all__ = ["Rss", "Trend", "rss_now", "steady", "trend"]

# Neighbouring samples are no evidence of their own: memory moves in steps. So the line goes through means.
MEANS: Final = 20
# Student's t for 95 % and as many means less two.
T_95: Final = 2.10
# Slopes whose median is taken, what turns the median distance from it into a standard deviation (of a normal
# distribution), and what a median's standard error is to a mean's.
SLOPES: Final = 12
DEVIATION: Final = 1.4826
MEDIAN: Final = 1.2533


@dataclass(frozen=True, slots=True)
class Rss:
    """Resident memory at a time, in KiB (2^10 bytes); the time in seconds from whatever zero the caller chose."""

    at_s: float
    service_kib: float
    gateway_kib: float

    @property
    def both_kib(self) -> float:
        """Of service and gateway together."""
        return self.service_kib + self.gateway_kib


@dataclass(frozen=True, slots=True)
class Trend:
    """A straight line through samples: its slope and the slope's standard error, in KiB per minute."""

    slope: float
    error: float

    @property
    def is_flat(self) -> bool:
        """Whether it rises no more than chance explains (95 %). One that falls is no leak."""
        return self.slope - T_95 * self.error <= 0

    def __str__(self) -> str:
        return f"{self.slope:+,.2f} ± {self.error:.2f} KiB/min"


def rss_now(path: Path, at_s: float) -> Rss:
    """Return the resident memory of both processes."""
    return Rss(at_s, *(process.memory_info().rss / 1024 for process in (path.service, path.gateway)))


def trend(samples: Sequence[tuple[float, float]]) -> Trend:
    """Return the line through (seconds, KiB), by least squares through the means of 20 equal stretches.

    The standard error is widened where one mean tells of the next (the first
    autocorrelation of the residuals): noise that wanders looks like a slope.
    ValueError for less than three samples.
    """
    if len(samples) < 3:
        raise ValueError(f"a trend needs at least three samples, got {len(samples)}")
    size = max(1, len(samples) // MEANS)
    stretches = [samples[start : start + size] for start in range(0, len(samples) - size + 1, size)]
    minutes = [statistics.fmean(at_s for at_s, _ in stretch) / 60 for stretch in stretches]
    levels = [statistics.fmean(kib for _, kib in stretch) for stretch in stretches]
    slope, intercept = statistics.linear_regression(minutes, levels)
    residuals = [level - intercept - slope * minute for minute, level in zip(minutes, levels, strict=True)]
    square = sum(residual * residual for residual in residuals)
    centre = statistics.fmean(minutes)
    spread = sum((minute - centre) ** 2 for minute in minutes)
    error = math.sqrt(square / (len(levels) - 2) / spread)
    echo = sum(a * b for a, b in pairwise(residuals)) / square if square else 0.0
    echo = min(max(echo, 0.0), 0.9)
    return Trend(slope, error * math.sqrt((1 + echo) / (1 - echo)))


def steady(samples: Sequence[tuple[float, float]]) -> Trend:
    """Return the growth that goes on all the time: the median of the slopes within 12 equal stretches.

    What an allocator takes at once, in a burst, is a step in one stretch and moves the
    median little; a leak grows in all of them. The standard error comes from the median
    distance of the slopes from theirs. ValueError for less than three samples a stretch.
    """
    size = len(samples) // SLOPES
    if size < 3:
        raise ValueError(f"needs at least {3 * SLOPES} samples, got {len(samples)}")
    slopes = []
    for start in range(0, SLOPES * size, size):
        stretch = samples[start : start + size]
        slopes.append(statistics.linear_regression([at_s / 60 for at_s, _ in stretch], [kib for _, kib in stretch])[0])
    middle = statistics.median(slopes)
    distance = statistics.median(abs(slope - middle) for slope in slopes)
    return Trend(middle, MEDIAN * DEVIATION * distance / math.sqrt(SLOPES))
