"""Independent pieces of work, one after another or in several processes."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor
from contextlib import contextmanager
from operator import call
from typing import TypeVar

import torch

from .checks import Report

Found = TypeVar("Found")

_FEW = 12
"""So few jobs are done before other processes would have started."""


@contextmanager
def workers(processes: int) -> Iterator[Executor]:
    """Several processes, each on one thread; what was not begun at the end is dropped."""
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(processes, context, torch.set_num_threads, (1,))
    try:
        yield pool
    finally:
        pool.shutdown(cancel_futures=True)


def spread(
    jobs: Sequence[tuple[str, Callable[[], Found]]], pool: Executor | None
) -> Callable[[Report], list[Found]]:
    """Begin jobs, if there is a pool for them.

    Args:
        jobs: names, and functions of modules that can be pickled if there is a pool.
        pool: where they are done; None does them here, when they are asked for.

    Returns:
        What waits for the jobs, reports the progress, and returns what they did, in their order.
    """
    names, work = [name for name, _ in jobs], [run for _, run in jobs]
    mapped = map if pool is None or len(jobs) <= _FEW else pool.map
    results: Iterator[Found] = mapped(call, work)

    def finish(report: Report) -> list[Found]:
        found: list[Found] = []
        for name in names:
            report(len(found), len(jobs), name)
            found.append(next(results))
        report(len(found), len(jobs), "")
        return found

    return finish
