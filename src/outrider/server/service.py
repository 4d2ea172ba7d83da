"""A decoder on a thread of its own, for any number of clients: submit, receive, cancel.

The thread owns the scheduler. Other threads hand it commands through a queue. What a request emits
is handed on round by round, to a function of its own.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from queue import SimpleQueue
from threading import Lock, Thread
from time import monotonic

from ..engine.commit import StepResult
from ..engine.decoder import SpeculativeDecoder
from ..engine.outputs import StreamEvent
from ..engine.scheduler import Scheduler
from ..engine.streaming import Streams
from ..errors import ModelError, OutriderError
from ..types.records import SequenceState
from .failures import ClosingError, DeadlineError, QueueFullError

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RowRound:
    """What one round did for one choice.

    Attributes:
        choice: its index in the request.
        drafted, accepted, emitted: tokens.
        depth: how many of the drafted ones lie in a row.
        source: the drafter that they came from.
        seconds: of the round, which others may have shared.
    """

    choice: int
    drafted: int
    accepted: int
    emitted: int
    depth: int
    source: str
    seconds: float


@dataclass(frozen=True, slots=True)
class Update:
    """What became of a request in one round.

    Attributes:
        events: its tokens, to be read once: their texts are made then, so that the engine does not
            wait for a tokenizer.
        rounds: of each choice that took part.
        done: whether nothing follows.
        error: why it was ended before it had ended by itself.
    """

    events: Iterable[StreamEvent] = ()
    rounds: tuple[RowRound, ...] = ()
    done: bool = False
    error: OutriderError | None = None


class Job:
    """A request that is decoded: its prompts, each with its choices.

    Args:
        groups: the starting states of each prompt's choices.
        receive: called with each update, on the service's thread; it must not block.
        streams: make events of rounds, for whoever receives them.
        deadline: when it is ended, in seconds of the monotonic clock.

    Attributes:
        submitted, started, first, ended: likewise, 0 before.
        cached: tokens of its prompts that were found computed.
    """

    def __init__(
        self,
        groups: Sequence[Sequence[SequenceState]],
        receive: Callable[[Update], None],
        streams: Streams,
        deadline: float,
    ) -> None:
        self.states = [state for group in groups for state in group]
        self.indices = {state.prefix.sequence_id: index for index, state in enumerate(self.states)}
        self.left = set(self.indices)
        self.receive = receive
        self.streams = streams
        self.deadline = deadline
        self.submitted = monotonic()
        self.started = self.first = self.ended = 0.0
        self.cached = 0

    def times(self) -> dict[str, float]:
        """Return the seconds of its parts; nothing before it has ended, or if it had no round."""
        if not (self.first and self.ended):
            return {}
        return {
            "queue": self.started - self.submitted,
            "prefill": self.first - self.started,
            "first_token": self.first - self.submitted,
            "decode": self.ended - self.first,
            "all": self.ended - self.submitted,
        }

    def advance(self, step: StepResult, rows: Sequence[int], now: float) -> Update:
        """Note a round that ended now, and return what it did for the rows of this request."""
        record, rounds = step.record, []
        self.first = self.first or now
        # One that ended in its first round was never seen waiting or held.
        self.started = self.started or now - record.total_s
        for row in rows:
            state = step.batch.states[row]
            self.cached += record.cached[row] if state.choice == 0 else 0
            rounds.append(
                RowRound(
                    self.indices[state.prefix.sequence_id],
                    record.drafted[row],
                    record.accepted[row],
                    record.emitted[row],
                    record.depth[row],
                    record.sources[row],
                    record.total_s,
                )
            )
            if state.finish_reason is not None:
                self.left.discard(state.prefix.sequence_id)
        events = chain.from_iterable(self.streams.of_row(step, row) for row in rows)
        return Update(events, tuple(rounds), done=not self.left)


class Service:
    """Decodes the requests of many clients together, on a thread of its own.

    Args:
        decoder: stepped by the thread alone, from now on.
        max_waiting: how many sequences may wait for room.
        timeout_s: how long a request may take, waiting included.
        prefill_chunk: tokens a step, of running requests and of new prompts; see `Scheduler`.

    Attributes:
        decoder: the decoder.
        closing: whether no more requests are taken.
    """

    def __init__(
        self,
        decoder: SpeculativeDecoder,
        *,
        max_waiting: int = 128,
        timeout_s: float = 600.0,
        prefill_chunk: int = 512,
    ) -> None:
        self.decoder = decoder
        self.closing = False
        self._max_waiting = max_waiting
        self._timeout_s = timeout_s
        self._ends_at = float("inf")
        self._commands: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._jobs: dict[int, Job] = {}
        self._open: set[int] = set()
        self._submitting = Lock()
        self._scheduler = Scheduler(decoder, name="the server", prefill_chunk=prefill_chunk)
        self._thread = Thread(target=self._run, name="outrider engine", daemon=True)
        self._thread.start()

    @property
    def running(self) -> int:
        """The number of sequences in the last round."""
        return len(self._scheduler.running)

    @property
    def waiting(self) -> int:
        """The number of sequences that wait for room, or for their first round."""
        return max(0, len(self._open) - self.running)

    def submit(
        self, groups: Sequence[Sequence[SequenceState]], receive: Callable[[Update], None]
    ) -> Job:
        """Queue a request.

        Args:
            groups: the starting states of each prompt's choices.
            receive: called with each update, on the service's thread; it must not block.

        Raises:
            QueueFullError: too many sequences wait.
            ClosingError: the service closes.
        """
        streams = Streams(groups, self.decoder.tokenizer)
        job = Job(groups, receive, streams, monotonic() + self._timeout_s)
        room = self._max_waiting + (self.decoder.max_sequences or 0)
        with self._submitting:
            if self.closing:
                raise ClosingError("the server is about to end; send the request to another one")
            if self._open and len(self._open) + len(job.left) > room:
                raise QueueFullError(
                    f"{len(self._open)} sequences run or wait and {room} may; try again later"
                )
            self._open.update(job.left)
            self._commands.put(partial(self._start, job))
        return job

    def cancel(self, job: Job) -> None:
        """End a request whose client has gone; nothing more is received of it."""
        if job.left:
            self._commands.put(partial(self._end, job, None))

    def close(self, grace_s: float = 0.0) -> None:
        """Take no more requests, and end once those that run have ended, or this has passed."""
        self.closing = True
        self._ends_at = min(self._ends_at, monotonic() + grace_s)
        self._commands.put(lambda: None)  # for a thread that waits for one

    def join(self, timeout_s: float | None = None) -> None:
        """Wait until the thread has ended."""
        self._thread.join(timeout_s)

    def _run(self) -> None:
        try:
            with self._scheduler:
                while not (self.closing and (not self._jobs or monotonic() >= self._ends_at)):
                    self._obey(wait=not self._jobs)
                    if self._jobs:
                        self._advance()
        except Exception:
            _LOG.exception("the engine ended")
        finally:
            with self._submitting:
                self.closing = True
            self._obey(wait=False)
            for job in self._open_jobs():
                self._end(job, ClosingError("the server ended before this request did"))

    def _obey(self, *, wait: bool) -> None:
        """Carry out the commands that have come; with `wait`, wait for one."""
        while wait or not self._commands.empty():
            self._commands.get()()
            wait = False

    def _advance(self) -> None:
        """Decode a round, and hand on what came of it."""
        now = monotonic()
        for job in self._open_jobs():
            if now >= job.deadline:
                self._end(job, DeadlineError(f"it took longer than {self._timeout_s:g} s"))
        try:
            step = self._scheduler.step()
            held = self._scheduler.held
            for job in self._open_jobs():
                job.started = job.started or (0.0 if held.isdisjoint(job.left) else now)
        except OutriderError as error:
            if error.sequence_id is None:
                _LOG.exception("a round failed")
            self._fail(error)
        except Exception as error:
            _LOG.exception("a round failed")
            self._fail(ModelError(f"{type(error).__name__} in a round; see the server's log"))
        else:
            if step is not None:
                self._deliver(step, monotonic())

    def _deliver(self, step: StepResult, now: float) -> None:
        rows: dict[Job, list[int]] = {}
        for row, sequence_id in enumerate(step.batch.sequence_ids):
            rows.setdefault(self._jobs[sequence_id], []).append(row)
        for job, of_job in rows.items():
            update = job.advance(step, of_job, now)
            self._open.difference_update(job.indices.keys() - job.left)
            if update.done:
                self._forget(job)
            _hand(job, update)

    def _fail(self, error: OutriderError) -> None:
        """End the request that an error names; all that the scheduler dropped if it names none."""
        named = self._jobs.get(-1 if error.sequence_id is None else error.sequence_id)
        for job in self._open_jobs() if named is None else [named]:
            self._end(job, error)

    def _start(self, job: Job) -> None:
        self._jobs |= dict.fromkeys(job.left, job)
        self._scheduler.submit(job.states)

    def _end(self, job: Job, error: OutriderError | None) -> None:
        """Take a request out of the rounds; the client hears of an error."""
        if not job.left:
            return
        for sequence_id in job.left:
            try:
                self._scheduler.cancel(sequence_id)
            except Exception:  # It has left the rounds, and its room is free.
                _LOG.exception("what was held for a sequence could not be released")
        self._forget(job)
        if error is not None:
            _hand(job, Update(done=True, error=error))

    def _forget(self, job: Job) -> None:
        job.ended = monotonic()
        job.left.clear()
        for sequence_id in job.indices:
            self._jobs.pop(sequence_id, None)
        self._open.difference_update(job.indices)

    def _open_jobs(self) -> list[Job]:
        return list(dict.fromkeys(self._jobs.values()))


def _hand(job: Job, update: Update) -> None:
    """Hand an update on; a client whose event loop has ended does not end the engine."""
    try:
        job.receive(update)
    except Exception:
        _LOG.exception("an update could not be handed on")
