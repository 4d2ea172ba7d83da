"""Independent pieces of work, one after another or in several processes."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from operator import call
from typing import TypeVar

import torch

from .checks import Report

Found = TypeVar("Found")

_FEW = 12
"""So few jobs are done before other processes would have started."""


def spread(
    jobs: Sequence[tuple[str, Callable[[], Found]]], report: Report, processes: int
) -> list[Found]:
    """Do jobs, and return what they return, in their order.

    Args:
        jobs: names, and functions of modules that can be pickled if there are several processes.
        report: takes the progress.
        processes: how many work, each on one thread; 1 for this one alone.
    """
    names, work = [name for name, _ in jobs], [run for _, run in jobs]
    with ExitStack() as stack:
        results: Iterator[Found] = map(call, work)
        if processes > 1 and len(jobs) > _FEW:
            context = multiprocessing.get_context("spawn")
            pool = ProcessPoolExecutor(processes, context, torch.set_num_threads, (1,))
            results = iter(stack.enter_context(pool).map(call, work))
        found: list[Found] = []
        for name in names:
            report(len(found), len(jobs), name)
            found.append(next(results))
        report(len(found), len(jobs), "")
    return found
