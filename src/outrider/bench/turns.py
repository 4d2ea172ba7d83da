"""The turn of a system that cannot be stopped within a request, and what its forwards tell.

Such a system reports no rounds. How many tokens each forward of its target was given, and how many
there were before, says how many it drafted and kept.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ..types.records import RoundRecord


@dataclass(slots=True)
class Forward:
    """A forward of a model.

    Attributes:
        end: how many tokens there were before what it drafted, its last known token included.
        columns: how many tokens there were with what it was given.
        seconds: that it took.
    """

    end: int
    columns: int
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Answer:
    """What a system made of a request.

    Attributes:
        token_ids: emitted.
        forwards: of its target, the one that read the prompt first.
        draft_s: seconds spent drafting.
        total_s: seconds from the request to the last token.
    """

    token_ids: tuple[int, ...]
    forwards: Sequence[Forward]
    draft_s: float
    total_s: float


class Turn:
    """A request that is answered at once: a `Racer` whose turn is the whole of it.

    Its clock leaves out the target's first forward, which reads the prompt, as `race.Lane`'s does.
    Other systems fail as they like: `failure` says then why there is no answer, and the others of a
    race go on.

    Args:
        prompt_tokens: how many the prompt has.
        answer: decodes.
    """

    def __init__(self, prompt_tokens: int, answer: Callable[[], Answer]) -> None:
        self._prompt_tokens = prompt_tokens
        self._answer = answer
        self._emitted: tuple[int, ...] = ()
        self.running = True
        self.seconds = 0.0
        self.prompt_s = 0.0
        self.records: list[RoundRecord] = []
        self.failure: str | None = None

    @property
    def token_ids(self) -> tuple[tuple[int, ...], ...]:
        """What was emitted."""
        return (self._emitted,)

    def advance(self) -> None:
        """Decode all."""
        if not self.running:
            return
        try:
            answer = self._answer()
            self.prompt_s = answer.forwards[0].seconds
            self.records = rounds(self._prompt_tokens, answer)
        except Exception as error:
            self.failure = " ".join(f"{type(error).__name__}: {error}".split())
        else:
            self._emitted = answer.token_ids
            self.seconds = answer.total_s - self.prompt_s
        self.running = False

    def close(self) -> None:
        """Nothing is held."""


def rounds(prompt_tokens: int, answer: Answer) -> list[RoundRecord]:
    """A round for each forward of the target; the first has the times of all.

    Args:
        prompt_tokens: how many the prompt has.
        answer: what was made of it.
    """
    forwards = answer.forwards
    ends = [*(forward.end for forward in forwards[1:]), prompt_tokens + len(answer.token_ids)]
    # A forward is given the last token of the prefix, and the drafts after it.
    starts = [prompt_tokens, *ends[:-1]]
    found = []
    for index, (forward, start, end) in enumerate(zip(forwards, starts, ends, strict=True)):
        first = index == 0
        drafted = forward.columns - start
        found.append(
            RoundRecord(
                sequence_ids=(0,),
                drafted=(drafted,),
                depth=(drafted,),
                accepted=(min(end - start - 1, drafted),),
                emitted=(end - start,),
                bonus=(end - start > drafted,),
                ceiling=(None,),
                first_ceiling=(None,),
                draft_failed=False,
                looked_up=(False,),
                ended=(False,),
                entropies=((),),
                cached=(0,),
                draft_s=answer.draft_s if first else 0.0,
                target_s=sum(each.seconds for each in forwards) if first else 0.0,
                total_s=answer.total_s if first else 0.0,
            )
        )
    return found
