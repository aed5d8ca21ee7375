"""/v1/completions: continues plain text, or scores a prompt.

A prompt given as text opens a document: the tokenizer's `bos_id` stands before
it. A prompt given as tokens is used unchanged. `echo` with `logprobs` returns
the prompt's log-probabilities. All drawn tokens are then listed, also the one
that ends the text: clients drop as many as they asked for, to be left with the
prompt's.
"""

from collections.abc import AsyncGenerator
import dataclasses

import numpy as np
from starlette import requests
from starlette import responses

from kaiju_jax.characters.prompts import prompt as prompt_lib
from kaiju_jax.decoding.requests import request as request_lib
from kaiju_jax.serving.http import errors
from kaiju_jax.serving.http import exchange as exchange_lib
from kaiju_jax.serving.replies import reply as reply_lib
from kaiju_jax.serving.routes import context as context_lib
from kaiju_jax.serving.routes import fields
from kaiju_jax.serving.routes import judge
from kaiju_jax.serving.routes import parse
from kaiju_jax.serving.routes import stream
from kaiju_jax.serving.routes import submit

# To spell a token takes as long as other work for so many bytes.
_SPELLED = 16


async def completions(request: requests.Request) -> responses.Response:
  """Answers POST /v1/completions."""
  context, caller = await parse.authorize(request)
  completion = await parse.read_fields(
    request, context, caller, fields.Completion
  )
  if parse.find_character(context, completion.model, None) is not None:
    raise errors.invalid(
      'model: characters chat; use /v1/chat/completions.', param='model'
    )
  count = len(completion.prompts)
  if count * completion.choices > fields.CHOICES:
    raise errors.invalid(
      f'prompt: {count} prompts with n={completion.choices} are more than'
      f' {fields.CHOICES} choices.',
      param='prompt',
    )
  limit = max(completion.max_tokens, 1)
  least = [_count_least(context, one) for one in completion.prompts]
  _check_alternatives(context, completion, limit, least)
  size = sum(map(len, completion.prompts))
  prompts = await context.texts.run(
    lambda: [_prompt(context, one, limit) for one in completion.prompts], size
  )
  counts = [len(one.tokens) for one in prompts]
  _check_alternatives(context, completion, limit, counts)
  context.limits.prompt(caller.owner, sum(counts), caller.rate)
  said = '\n'.join(prompt.text for prompt in prompts)
  watch, is_blocked = await judge.judge_request(context, caller, said, 'prompt')
  exchange = exchange_lib.find(request)
  form = stream.Form(
    'text_completion', completion.model, context.model.fingerprint
  )
  if is_blocked:
    exchange.note_end('gate')
    choices = [
      stream.choice(n, 'content_filter', text='')
      for n in range(count * completion.choices)
    ]
    usage = stream.usage(sum(counts), 0, 0)
    return stream.answer_blocked(form, completion, choices, choices, usage)
  wanted = [
    one
    for prompt in prompts
    for one in _requests(context, caller, completion, prompt, limit)
  ]
  choices = await submit.replies(exchange, context, caller, watch, wanted, said)
  answer = _CompletionAnswer(context, completion, prompts, form, choices)
  if completion.stream:
    return stream.EventStream(answer.chunks())
  body = await stream.answer_client(request, answer.whole())
  return responses.JSONResponse(body)


@dataclasses.dataclass(frozen=True)
class _Prompt:
  """A prompt as text and as tokens; `is_tokens` if it was given as tokens."""

  text: str
  tokens: np.ndarray
  is_tokens: bool


def _prompt(context, given: str | list[int], limit: int) -> _Prompt:
  """Returns a prompt; refuses one that cannot fit before it is encoded."""
  tokenizer = context.tokenizer
  _refuse_long(context, _count_least(context, given), limit)
  if isinstance(given, str):
    tokens = np.concatenate([[tokenizer.bos_id], tokenizer.encode(given)])
    _refuse_long(context, len(tokens), limit)
    return _Prompt(given, tokens, False)
  try:
    tokens = request_lib.check_tokens(given, tokenizer.vocab_size, 'prompt')
  except (TypeError, ValueError, OverflowError) as error:
    raise errors.invalid(str(error), param='prompt') from error
  return _Prompt(tokenizer.decode(tokens), tokens, True)


def _count_least(context, given: str | list[int]) -> int:
  """Returns how many tokens a prompt has at least; encodes nothing."""
  if not isinstance(given, str):
    return len(given)
  turn = prompt_lib.Turn('user', given)
  return 1 + prompt_lib.count_least(turn, context.tokenizer)


def _check_alternatives(context, completion, limit, counts) -> None:
  """Refuses too many alternatives; `counts` are the prompts' tokens."""
  scored = sum(counts) if completion.echo else 0
  tokens = completion.choices * (scored + limit * len(counts))
  given = completion.logprobs or 0
  parse.check_alternatives(context, 'logprobs', given, tokens)


def _refuse_long(context, tokens: int, limit: int) -> None:
  """Refuses a prompt that leaves no room for an answer of `limit` tokens."""
  parse.check_limit(context, 'max_tokens', limit)
  if tokens + limit > context.model.length:
    raise errors.too_long(
      f'a prompt of {tokens:,} tokens and max_tokens={limit:,} are'
      f' {tokens + limit:,}.',
      'prompt',
      context.model.length,
    )


def _requests(
  context, caller, completion, prompt, limit
) -> list[request_lib.Request]:
  return [
    request_lib.Request(
      prompt.tokens,
      limit,
      sampling,
      stop_tokens=() if completion.ignore_eos else context.ends,
      stop_strings=completion.stops,
      scores_prompt=completion.scores_prompt,
      begun=len(prompt.tokens),
      alternatives=completion.logprobs or 0,
      owner=caller.owner,
      priority=caller.tier,
      deadline=context.engines.max_wait_s,
    )
    for sampling in completion.samplings(
      context.sampling, context.tokenizer.vocab_size
    )
  ]


class _CompletionAnswer:
  """The answer to one request, streamed or whole."""

  def __init__(self, context, completion, prompts, form, choices):
    self._context: context_lib.Context = context
    self._completion: fields.Completion = completion
    self._prompts: list[_Prompt] = [
      prompt for prompt in prompts for _ in range(completion.choices)
    ]
    self._choices: reply_lib.Choices = choices
    self._replies = choices.replies
    self._form: stream.Form = form
    self._spellers = [self._speller(one) for one in self._prompts]

  async def whole(self) -> dict:
    """Returns the whole answer, once all its choices have ended."""
    events = [[] for _ in self._replies]
    async with self._choices.serve() as pieces:
      async for index, piece in pieces:
        if piece is not None:
          events[index] += self._list_shown(piece.events)
        elif self._completion.scores_prompt:
          await self._replies[index].end()

    def choices() -> list[dict]:
      return [
        stream.choice(
          index,
          reply.finish,
          self._scored(index, events[index]),
          text=self._echoed(index) + ('' if self._draws_none else reply.text),
        )
        for index, reply in enumerate(self._replies)
      ]

    scored = self._prompts if self._completion.scores_prompt else []
    size = _SPELLED * sum(len(one.tokens) for one in scored)
    found = await self._context.texts.run(choices, size)
    return self._form.whole(found, self._usage())

  async def chunks(self) -> AsyncGenerator[bytes]:
    """Yields the events of the stream; after an error there is no [DONE]."""
    try:
      async with self._choices.serve() as pieces:
        begun: set[int] = set()
        async for index, piece in pieces:
          # The echo waits for the first piece: by then the prompt is judged.
          if self._echoed(index) and index not in begun:
            yield self._chunk(index, self._echoed(index))
          begun.add(index)
          if piece is None:
            finish = self._replies[index].finish
            yield self._chunk(index, '', finish=finish)
          elif not self._draws_none:
            shown = self._list_shown(piece.events)
            yield self._chunk(index, piece.text, shown)
      if self._completion.includes_usage:
        yield self._form.chunk([], usage=self._usage())
      yield stream.DONE
    except errors.ApiError as error:
      yield stream.break_stream(self._context, error)

  def _list_shown(self, events) -> list[request_lib.Event]:
    """Returns the tokens of the text, without the one that ends it."""
    if self._completion.scores_prompt:
      return list(events)
    return [one for one in events if one.reason != 'stop_token']

  @property
  def _draws_none(self) -> bool:
    return self._completion.max_tokens == 0

  def _echoed(self, index: int) -> str:
    """Returns the prompt to be echoed; '' without echo or if refused."""
    if not self._completion.echo or self._replies[index].is_prompt_refused:
      return ''
    return self._prompts[index].text

  def _chunk(self, index, text, events=(), finish=None) -> bytes:
    scored = None
    if self._completion.logprobs is not None and events:
      scored = stream.text_log_probabilities(
        self._spellers[index],
        [one.token for one in events],
        [one.log_probability for one in events],
        self._alternatives([one.alternatives for one in events]),
      )
    counted = {'usage': self._usage()} if self._completion.counts_on else {}
    one = stream.choice(index, finish, scored, text=text)
    return self._form.chunk([one], **counted)

  def _scored(self, index: int, events) -> dict | None:
    """Returns the log-probabilities that were requested; None for none."""
    if (
      self._completion.logprobs is None
      or self._replies[index].is_prompt_refused
    ):
      return None
    speller, listed = self._spellers[index], []
    if self._completion.echo:
      speller = stream.Speller(self._context.tokenizer)
      listed = self._scored_prompt(index)
    if not self._draws_none:
      listed += [(x.token, x.log_probability, x.alternatives) for x in events]
    tokens, scores, likeliest = [*zip(*listed)] or ((), (), ())
    return stream.text_log_probabilities(
      speller, tokens, scores, self._alternatives(likeliest)
    )

  def _speller(self, prompt: _Prompt) -> stream.Speller:
    """Returns what spells the drawn tokens behind a prompt."""
    offset = len(prompt.text) if self._completion.echo else 0
    return stream.Speller(self._context.tokenizer, offset, prompt.tokens)

  def _scored_prompt(
    self, index: int
  ) -> list[tuple[int, float | None, request_lib.Alternatives]]:
    """Returns a prompt's tokens, log-probabilities and alternatives."""
    prompt, reply = self._prompts[index], self._replies[index]
    tokens, count = prompt.tokens.tolist(), self._completion.logprobs
    scores = reply.prompt_log_probabilities.tolist()
    found = reply.prompt_alternatives
    listed = [(tokens[0], None, ())]
    for place, one in enumerate(zip(tokens[1:], scores)):
      likeliest = found.list(place, count, *one) if count else ()
      listed.append((*one, likeliest))
    # The client did not send the token that opens the document.
    return listed if prompt.is_tokens else listed[1:]

  def _alternatives(self, likeliest):
    """Returns what is listed of alternatives; None where none are."""
    return list(likeliest) if self._completion.logprobs else None

  def _usage(self) -> dict:
    choices = self._completion.choices
    firsts = range(0, len(self._replies), choices)
    return stream.usage(
      sum(len(self._prompts[first].tokens) for first in firsts),
      0 if self._draws_none else self._choices.drawn,
      sum(self._replies[first].reused for first in firsts),
    )
