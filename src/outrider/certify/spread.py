"""Independent pieces of work, one after another or in several processes."""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import BrokenExecutor, Executor, ProcessPoolExecutor
from contextlib import contextmanager
from operator import call
from typing import TypeVar

import torch

from ..errors import OutriderError
from .checks import Report

Found = TypeVar("Found")


@contextmanager
def workers(processes: int) -> Iterator[Executor]:
    """Several processes, each on one thread; what they have not done at an error is dropped."""
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(processes, context, _prepare)
    try:
        yield pool
    except BaseException:
        for process in multiprocessing.active_children():
            process.terminate()
        raise
    finally:
        pool.shutdown(cancel_futures=True)


def _prepare() -> None:
    """Work on one thread, and end silently at Ctrl-C, which the process that waits reports."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    torch.set_num_threads(1)


def spread(
    jobs: Sequence[tuple[str, Callable[[], Found]]], pool: Executor | None
) -> Callable[[Report], list[Found]]:
    """Begin jobs, by name, in a pool; without one they are done when they are asked for.

    Returns:
        What waits for the jobs, reports the progress, and returns what they did, in their order; it
        raises OutriderError if a process of the pool was ended by another.
    """
    names, work = [name for name, _ in jobs], [run for _, run in jobs]
    mapped = map if pool is None else pool.map
    results: Iterator[Found] = mapped(call, work)

    def finish(report: Report) -> list[Found]:
        found: list[Found] = []
        for name in names:
            report(len(found), len(jobs), name)
            try:
                found.append(next(results))
            except BrokenExecutor as error:
                raise OutriderError(
                    f"a process that worked on {name!r} or beside it was ended from outside, most "
                    "often for want of memory; free some, or run one tier after the other (--tier)"
                ) from error
        report(len(found), len(jobs), "")
        return found

    return finish
