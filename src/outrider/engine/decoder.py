"""The decoder: requests in, texts out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any, Literal, get_args, overload

from ..config.params import SamplingParams
from ..config.validation import choice
from ..errors import InvalidConfigError, OutriderError
from ..sampling.grammar import Grammars
from ..types.records import SequenceState
from .engine import Engine
from .outputs import GenerationOutput, StreamEvent
from .requests import Prompt, Request, parse_request, split_prompts, token_ids
from .scheduler import Scheduler
from .streaming import Call, events, outputs

OnError = Literal["raise", "return"]
"""What happens where a request is refused or fails; see `SpeculativeDecoder.generate`."""


class SpeculativeDecoder(Engine):
    """Decodes with a target model, several tokens a forward pass, from exactly its distribution.

    Any number of threads may call it; the guide to generating says how, under "Threads".

    Args:
        target: the model whose distribution the output follows.
        drafter: proposes tokens; a runtime is wrapped in a `ModelDrafter`. None decodes plainly.
        tokenizer: turns text prompts into token ids, and output into text.
        config: how speculation is done.
        chance: the source of randomness; Philox4x32-10 keyed by each request's seed if None.
        verifier: a verification method of your own in place of the one that `config.verification`
            names; `outrider certify --module` finds out whether it is lossless.
        policy: a policy of your own in place of the one that `config.depth` names; it is bound by
            the tokens that remain, not by `num_speculative_tokens`.
        on_round: called with the record of each round that `metrics` counts; see
            `outrider.engine.trace`.

    Raises:
        VocabMismatchError: drafter and target have different vocabulary sizes.
        InvalidConfigError: drafter and target are on different devices, or an argument is of the
            wrong type.
        TokenOutOfRangeError: the configuration's `draft_params` name a token that there is not.
    """

    @cached_property
    def _grammars(self) -> Grammars:
        """The forms that requests ask for, made once each."""
        return Grammars(self.tokenizer, self.target.vocab_size, self.target.eos_token_ids)

    def start(self, prompt: Prompt, params: SamplingParams | None = None) -> list[SequenceState]:
        """Return the starting states of a request: one for each of its n choices.

        Raises:
            EmptyPrefixError, TokenOutOfRangeError, ContextLengthError, InvalidConfigError: the
                request is refused; see `outrider.errors`.
        """
        request = self._parse(prompt, params)
        return request.states(self.new_sequence_ids(request.params.n))

    def tokens_of(self, prompt: Prompt) -> tuple[int, ...]:
        """Return the token ids of a prompt as `generate` reads it.

        Raises:
            InvalidConfigError: it is neither text nor token ids, or text without a tokenizer.
        """
        return token_ids(prompt, self.tokenizer)

    @overload
    def generate(  # type: ignore[overload-overlap]  # a text is a sequence of texts, too
        self,
        prompts: Prompt,
        params: SamplingParams | None = None,
        *,
        on_error: OnError = "raise",
    ) -> GenerationOutput: ...

    @overload
    def generate(
        self,
        prompts: Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        on_error: OnError = "raise",
    ) -> list[GenerationOutput]: ...

    def generate(self, prompts: Any, params: Any = None, *, on_error: OnError = "raise") -> Any:
        """Decode prompts to the end.

        Args:
            prompts: one prompt, text or token ids, or a list of prompts. As many sequences are
                decoded together as the models have room for; the others wait. A chat is
                `tokenizer.apply_chat_template(messages, add_generation_prompt=True)`.
            params: for all prompts, or a list with one for each.
            on_error: what happens where a request is refused, or cannot go on. "raise" raises the
                first error, and what the others had is lost. "return" goes on with the others, and
                gives that choice its `error`, with the tokens that it had. An error that is about
                no one request ends all that have not ended.

        Returns:
            One output for one prompt, a list for a list.

        Raises:
            EmptyPrefixError, TokenOutOfRangeError, ContextLengthError, InvalidConfigError: a
                request is refused, before anything is decoded.
            OutriderError: one cannot go on; its index among the prompts is the error's `request`.
        """
        listed, single = split_prompts(prompts)
        call = self._call(listed, params, "generate", on_error)
        found = outputs(call, self.tokenizer, lossy=self._tally.lossy)
        return found[0] if single else found

    def stream(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        on_error: OnError = "raise",
    ) -> Iterator[StreamEvent]:
        """Decode prompts, and yield every token as soon as its round is over.

        Requests are checked when this is called. Until it ends or is closed the iterator holds room
        of the models.

        Args:
            prompts: as for `generate`.
            params: as for `generate`.
            on_error: as for `generate`; with "return" a choice that fails ends with an event that
                has its `error`.
        """
        call = self._call(split_prompts(prompts)[0], params, "an open stream", on_error)
        return events(call, self.tokenizer)

    def _call(self, prompts: list[Any], params: Any, name: str, on_error: object) -> Call:
        """Check requests, and make what decodes them."""
        keeps = choice("on_error", on_error, choices=get_args(OnError)) == "return"
        if not isinstance(params, Sequence):
            params = [params] * len(prompts)
        elif len(params) != len(prompts):
            raise InvalidConfigError(
                "params", f"a list of {len(params)}", f"one for all prompts, or {len(prompts)}"
            )
        requests: list[Request | OutriderError] = []
        groups: list[list[SequenceState]] = []
        for index, asked in enumerate(zip(prompts, params, strict=True)):
            try:
                request = self._parse(*asked)
                groups.append(request.states(self.new_sequence_ids(request.params.n)))
                requests.append(request)
            except OutriderError as error:
                error.request = index
                if not keeps:
                    if len(prompts) > 1:
                        error.args = (f"prompts[{index}] is refused: {error}",)
                    raise
                groups.append([])
                requests.append(error)
        return Call(Scheduler(self, name=name), requests, groups, keeps=keeps)

    def _parse(self, prompt: Any, params: Any) -> Request:
        given = SamplingParams() if params is None else params
        drafts = self.drafter is not None
        return parse_request(
            prompt,
            given,
            self.tokenizer,
            self.target.capabilities,
            self._grammars,
            drafts=drafts,
            mixes=drafts and self.verifier.keeps_forbidden,
        )
