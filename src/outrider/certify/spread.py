"""Independent pieces of work, one after another or in several processes."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from typing import TypeVar

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
        processes: how many work; 1 for this one alone.
    """
    names = [name for name, _ in jobs]
    work = [run for _, run in jobs]
    with ExitStack() as stack:
        results: Iterable[Found] = map(_call, work)
        if processes > 1 and len(jobs) > _FEW:
            context = multiprocessing.get_context("spawn")
            pool = ProcessPoolExecutor(processes, context, _one_thread)
            results = stack.enter_context(pool).map(_call, work)
        found: list[Found] = []
        report(0, len(jobs), names[0] if names else "")
        for result in results:
            found.append(result)
            report(len(found), len(jobs), names[min(len(found), len(jobs) - 1)])
    return found


def _call(run: Callable[[], Found]) -> Found:
    return run()


def _one_thread() -> None:
    """Small tensors gain nothing from more threads."""
    import torch

    torch.set_num_threads(1)
