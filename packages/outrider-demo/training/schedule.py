"""The learning-rate schedule of a run with a wall-clock budget."""

WARMUP_STEPS = 30
DECAY_START = 0.5
FLOOR = 0.02


def learning_rate_factor(step: int, elapsed: float) -> float:
    """Return the factor on the base learning rate: warm up, hold, decay linearly.

    The warm-up counts steps; the decay follows the clock, so that a run of any length on any
    machine ends on a small learning rate.

    Args:
        step: Steps already taken, from 0.
        elapsed: Fraction of the time budget already spent, in [0, 1).

    Returns:
        A factor in (0, 1]: it reaches 1 at step 30, stays there until half the time is spent, then
        falls towards 0 and stops at .02.
    """
    warmup = min(1.0, (step + 1) / WARMUP_STEPS)
    decay = 1.0 if elapsed < DECAY_START else max(FLOOR, (1 - elapsed) / (1 - DECAY_START))
    return warmup * decay
