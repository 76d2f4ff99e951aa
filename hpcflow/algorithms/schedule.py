"""The learning rate over a run, as a factor of its peak.

The unit is optimizer steps: neither micro-batches nor evaluations move it. The factor is a function
of the step and of nothing else, so a resumed run continues it by knowing its step.
"""

import math
from typing import Literal, assert_never

ScheduleKind = Literal["constant", "linear", "cosine"]


def learning_rate_factor(step: int, *, warmup: int, horizon: int, kind: ScheduleKind) -> float:
    """The factor, in 0..1, for the optimizer step that comes after `step` finished ones.

    Over the first `warmup` steps it rises as 1/warmup, 2/warmup, .., 1: no step is spent on a
    learning rate of 0. Then it stays (constant), or falls from 1 at step `warmup` to 0 at step
    `horizon`, in a line or half a cosine. A run takes steps 0 .. horizon - 1.
    """
    if step < warmup:
        return (step + 1) / warmup
    progress = (step - warmup) / (horizon - warmup) if step < horizon else 1.0
    match kind:
        case "constant":
            return 1.0
        case "linear":
            return 1.0 - progress
        case "cosine":
            return 0.5 * (1.0 + math.cos(math.pi * progress))
        case _:
            assert_never(kind)
