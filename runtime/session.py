"""A loaded bundle: prompts in, text or token ids out, one request at a time."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import closing
from threading import Lock
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from .bundle.manifest import Manifest
from .embeds import Embeds, Span, check_embeds
from .engines import Engines
from .errors import IncompatibleError, UsageError
from .loop import Limits, plan_limits, run
from .policy.controller import AdaptiveWidth, Controller, FixedWidth
from .request import Request
from .sampling.parameters import GREEDY, Sampling
from .statistics import Recorder, Statistics
from .stops import StopFilter

if TYPE_CHECKING:
    from .detokenizer import AnswerText
    from .text import Prompt, Text  # not at run time: the libraries of text load beside the engines


class Session:
    """Engines, text and the statistics of the last request. Make one with `dflash_compile.runtime.load`.

    Requests share nothing but the memory they run in: every one starts at position 0 and reads no row it has not
    written. A context manager.
    """

    def __init__(self, manifest: Manifest, engines: Engines, text: Text, notes: Sequence[str] = ()) -> None:
        self.manifest = manifest
        self._notes = tuple(notes)
        self._engines: Engines | None = engines
        self._text = text
        self._record: Recorder | None = None
        self._adaptive = AdaptiveWidth.for_engines(engines)
        self._undrafted = AdaptiveWidth.for_engines(engines, drafter=False)
        self._busy = Lock()

    def generate(
        self,
        prompt: Prompt,
        *,
        max_new_tokens: int | None = None,
        stop: str | Sequence[str] = (),
        special_tokens: bool = False,
        on_token: Callable[[int], None] | None = None,
        raw: bool = False,
        draft: bool = True,
        block: int | None = None,
        lookup: bool | None = None,
        sampling: Sampling = GREEDY,
        inputs_embeds: Embeds = (),
        chat_template_kwargs: Mapping[str, Any] | None = None,
    ) -> Generator[str, None, None]:
        """The answer to `prompt`, in pieces of whole characters as they become certain.

        `prompt` is text (one user message, unless `raw`), messages, or token ids. The answer ends at end of sequence,
        before the first of `stop`, after `max_new_tokens`, or where the bundle's context is full; `statistics.finish`
        says which. `special_tokens` shows those of the answer, which are otherwise left out; stop strings find them
        either way. `on_token` gets every id as it is known. `draft=False` is plain decoding, with the same result. How
        wide a block is, and whether drafting pays at all, is decided as the answer goes, from what cycles cost on this
        machine and how often proposals are accepted; `block` fixes the width instead, at most what the drafter was
        built for.
        Where the text repeats itself, what came next the last time is verified in place of the drafter's proposals when
        that promises more; `lookup=False` leaves that out, and `lookup=True` does it with `draft=False` too. `sampling`
        draws tokens by chance, or changes their logits: the text is then a function of prompt, parameters and seed, and
        drafting changes nothing of it either; by default, and at temperature 0, the largest logit wins. `inputs_embeds`
        are for the targets of multimodal checkpoints: (start, rows) pairs, rows float32 [n, hidden], which take the
        place of n placeholder tokens of a prompt of ids, from its `start`-th on, as transformers' `inputs_embeds` do:
        behind the scale or norm that the model gives its embeddings. `chat_template_kwargs` are what the chat template
        reads beside the messages, `enable_thinking` or `tools` for example; where a chat asks for thinking and the
        drafter was trained without it, or the other way round, `notes` says so. Raises `UsageError`, `LengthError` and,
        for a bundle that takes no `inputs_embeds` or whose engines give no logits to sample from, `IncompatibleError`
        at once, before the first piece is asked for.
        """
        filtered = StopFilter(
            list(stop) if isinstance(stop, Iterable) and not isinstance(stop, str | bytes) else [stop]
        )
        ids = self.encode(prompt, raw=raw, chat_template_kwargs=chat_template_kwargs)
        embeds = self._spans(inputs_embeds, prompt, ids)
        record = self._recorder()
        request = Request(ids, max_new_tokens, draft, block, lookup, embeds, sampling)
        tokens = self._answer(request, record)
        text = self._text.answer(filtered, self.manifest.text.eos_ids, special_tokens=special_tokens)
        return self._pieces(tokens, record, text, on_token)

    def tokens(
        self,
        prompt: Prompt,
        *,
        max_new_tokens: int | None = None,
        raw: bool = False,
        draft: bool = True,
        block: int | None = None,
        lookup: bool | None = None,
        sampling: Sampling = GREEDY,
        inputs_embeds: Embeds = (),
        chat_template_kwargs: Mapping[str, Any] | None = None,
    ) -> Generator[int, None, None]:
        """As `generate`, in token ids; an end-of-sequence token is the last of them."""
        ids = self.encode(prompt, raw=raw, chat_template_kwargs=chat_template_kwargs)
        embeds = self._spans(inputs_embeds, prompt, ids)
        request = Request(ids, max_new_tokens, draft, block, lookup, embeds, sampling)
        return self._answer(request, self._recorder())

    def encode(
        self, prompt: Prompt, *, raw: bool = False, chat_template_kwargs: Mapping[str, Any] | None = None
    ) -> list[int]:
        """Token ids of `prompt` as `generate` reads it. Raises as it does, for what is no prompt."""
        return self._text.encode(prompt, raw=raw, variables=chat_template_kwargs)

    @property
    def engines(self) -> Engines:
        """Those of the bundle, for measuring: whoever calls them leaves nothing that a request would read. Raises
        `UsageError` where the session is closed.
        """
        if self._engines is None:
            raise UsageError("this session is closed", fix="load the bundle again")
        return self._engines

    @property
    def notes(self) -> tuple[str, ...]:
        """What is unusual about this bundle, this machine or the chats asked for so far, in sentences for the user,
        each once.
        """
        return self._notes if self._text.note is None else (*self._notes, self._text.note)

    @property
    def statistics(self) -> Statistics:
        """Of the request that started last, as far as it has come. Raises `UsageError` before the first."""
        if self._record is None:
            raise UsageError("no request has run in this session yet", fix="read `statistics` after generating")
        return self._record.snapshot()

    @property
    def verdict(self) -> str:
        """Whether drafting pays here, in a sentence: what decides how wide blocks are."""
        return self._adaptive.verdict()

    def close(self) -> None:
        """Release the engines and their memory. Closing twice does nothing."""
        if self._engines is not None:
            self._engines.close()
            self._engines = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _recorder(self) -> Recorder:
        return Recorder(self.engines.drafter.block)

    def _spans(self, embeds: Embeds, prompt: Prompt, ids: Sequence[int]) -> tuple[Span, ...]:
        """`embeds` for a `prompt` of `ids`. Raises as `check_embeds`, and `UsageError` where the prompt is text."""
        spans = check_embeds(embeds, len(ids), self.engines.target.embeds)
        if spans and (isinstance(prompt, str) or any(isinstance(item, Mapping) for item in prompt)):
            raise UsageError(
                "inputs_embeds with a prompt that is text",
                why="they belong to tokens by number",
                fix="give the prompt as token ids",
            )
        return spans

    def _answer(self, request: Request, record: Recorder) -> Generator[int, None, None]:
        """The running answer in ids, everything that can be wrong with the request checked."""
        widest = self.engines.drafter.block
        if request.block is not None and request.block > widest:
            raise UsageError(
                f"block={request.block!r}",
                why=f"the drafter was built for blocks of 2 to {widest} rows",
                fix="choose one of those, or leave it out",
            )
        self._check_sampling(request.sampling)
        limits = plan_limits(request, self.engines.target, self.manifest.text.eos_ids)
        return self._run(request, limits, record)

    def _check_sampling(self, sampling: Sampling) -> None:
        sampling.check_vocab(self.engines.target.vocab)
        if not sampling.plain and not self.engines.target.reports_logits:
            raise IncompatibleError(
                f"sampling with {', '.join(sampling.changed())}",
                where=f"a bundle for {self.manifest.requires.backend}",
                why="its engines choose the token of the largest logit by themselves",
                fix="leave `sampling` out, or build for a back-end whose engines give logits: see docs/runtime.md",
            )

    def _run(self, request: Request, limits: Limits, record: Recorder) -> Generator[int, None, None]:
        if not self._busy.acquire(blocking=False):
            raise UsageError(
                "this session is already generating",
                why="its cache holds one request at a time",
                fix="finish or close() the other generator first, or load the bundle twice",
            )
        try:
            engines, controller = self.engines, self._controller(request)
            self._record = record
            controller.begin()
            yield from run(engines, request, limits, controller, record)
        finally:
            self._busy.release()

    def _controller(self, request: Request) -> Controller:
        if request.block is not None:
            return FixedWidth(request.block)
        return self._adaptive if request.draft else self._undrafted

    def _pieces(
        self,
        tokens: Generator[int, None, None],
        record: Recorder,
        text: AnswerText,
        on_token: Callable[[int], None] | None,
    ) -> Generator[str, None, None]:
        with closing(tokens):
            for token in tokens:
                if on_token is not None:
                    on_token(token)
                if piece := text.feed(token):
                    yield piece
                if text.stopped:
                    record.finish = "stop"
                    return
        if piece := text.flush():
            yield piece
