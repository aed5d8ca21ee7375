"""/v1/chat/completions: answers a chat, or the next turn of a session.

A request goes through six stages, a file each: `parse`, `prompt`, `judge`,
`submit`, `stream` and `store`. A session's reply is stored when it ends. If the
client leaves earlier, the part that was released is stored.
"""

import asyncio
from collections.abc import AsyncGenerator
import contextlib
import dataclasses
import json
import logging
from typing import Any

from starlette import requests
from starlette import responses

import kaiju_jax
from kaiju_jax.decoding.requests import request as request_lib
from kaiju_jax.decoding.requests import sampling as sampling_lib
from kaiju_jax.serving.http import errors
from kaiju_jax.serving.http import exchange as exchange_lib
from kaiju_jax.serving.replies import reply as reply_lib
from kaiju_jax.serving.routes import context as context_lib
from kaiju_jax.serving.routes import fields
from kaiju_jax.serving.routes import judge
from kaiju_jax.serving.routes import parse
from kaiju_jax.serving.routes import prompt as prompt_lib
from kaiju_jax.serving.routes import store as store_lib
from kaiju_jax.serving.routes import stream
from kaiju_jax.serving.routes import submit
from kaiju_jax.serving.stores import characters

_LOG = logging.getLogger(__name__)
_REFUSED = 'This message was refused.'
# The tasks that store replies whose clients have left. asyncio itself keeps
# only weak references to tasks.
_KEEPING: set[asyncio.Task] = set()


async def completions(request: requests.Request) -> responses.Response:
  """Answers POST /v1/chat/completions."""
  context, caller = await parse.authorize(request)
  chat = await parse.read_fields(request, context, caller, fields.Chat)
  character = parse.find_character(context, chat.model, chat.character)
  parse.check_alternatives(
    context,
    'top_logprobs',
    chat.top_logprobs or 0,
    chat.choices * min(chat.limit or context.max_tokens, context.model.length),
  )
  turn = await prompt_lib.make_turn(context, caller, chat, character)
  form = stream.Form('chat.completion', chat.model, context.model.fingerprint)
  watch, is_blocked = await judge.judge_request(context, caller, turn.judged)
  exchange = exchange_lib.find(request)
  if is_blocked:
    exchange.note_end('gate')
    return _refuse(form, chat, turn)
  generations = _requests(context, caller, chat, turn)
  choices = await submit.replies(
    exchange,
    context,
    caller,
    watch,
    generations,
    turn.judged,
    turn.format,
    turn.opened,
    turn.begun,
  )
  await store_lib.keep_message(context.store, turn)
  drawn = [_drawn(context, one) for one in generations]
  answer = _ChatAnswer(context, chat, turn, form, choices, drawn)
  if chat.stream:
    return stream.EventStream(answer.chunks())
  body = await stream.answer_client(request, answer.whole())
  return responses.JSONResponse(body)


def _requests(context, caller, chat, turn) -> list[request_lib.Request]:
  """Returns the engine's requests, one per choice."""
  tokens = turn.prompt.tokens
  most = chat.limit or context.max_tokens
  guide = None
  if chat.guided:
    guide = parse.find_guide(context)
    most = min(most, context.guided_tokens)
  is_greedy = chat.temperature == 0
  defaults = context.sampling if is_greedy else context.chat_sampling
  return [
    request_lib.Request(
      tokens,
      min(most, context.model.length - len(tokens)),
      sampling,
      stop_tokens=() if chat.ignore_eos else turn.format.stop_tokens,
      stop_strings=chat.stops,
      owner=caller.owner,
      shared=turn.prompt.shared,
      cache_salt=turn.cache_salt,
      conversation=turn.conversation,
      priority=caller.tier,
      deadline=context.engines.max_wait_s,
      guided=guide,
      begun=len(turn.begun_tokens),
      alternatives=chat.top_logprobs or 0,
    )
    for sampling in chat.samplings(
      {} if chat.guided else defaults, context.tokenizer.vocab_size
    )
  ]


def _drawn(
  context: context_lib.Context, request: request_lib.Request
) -> characters.Drawn:
  """Returns how the engine draws a request's reply, for the store."""
  given = dataclasses.asdict(request.sampling)
  own = {x.name for x in dataclasses.fields(characters.Drawn)}
  others = {name: given.pop(name) for name in given.keys() - own}
  changed = {
    name: x
    for name, x in others.items()
    if x != getattr(sampling_lib.Sampling, name)
  }
  return characters.Drawn(
    model=context.model.weights,
    build=kaiju_jax.__version__,
    guided=request.guided is not None,
    others=json.loads(json.dumps(changed)),
    **given,
  )


class _ChatAnswer:
  """The answer to one request, streamed or whole."""

  def __init__(self, context, chat, turn, form, choices, drawn):
    self._context: context_lib.Context = context
    self._chat: fields.Chat = chat
    self._turn: store_lib.PendingTurn = turn
    self._form: stream.Form = form
    self._choices: reply_lib.Choices = choices
    self._replies = choices.replies
    self._drawn: list[characters.Drawn] = drawn
    self._kept: set[int] = set()
    self._spellers = []
    if chat.logprobs:
      self._spellers = [
        stream.Speller(context.tokenizer, begun=turn.begun_tokens)
        for _ in self._replies
      ]

  async def whole(self) -> dict[str, Any]:
    """Returns the whole answer, once all its choices have ended."""
    events = [[] for _ in self._replies]
    messages: dict[int, int | None] = {}
    async with self._served() as pieces:
      async for index, piece in pieces:
        if piece is None:
          messages[index] = await self._keep(index)
        else:
          events[index] += piece.events
    choices = []
    for index, reply in enumerate(self._replies):
      message = {
        'role': 'assistant',
        'content': self._echoed(index) + reply.text,
        'refusal': _REFUSED if reply.is_prompt_refused else None,
        **self._thought(reply.reasoning or None),
      }
      scored = self._scored(index, events[index])
      choices.append(
        stream.choice(index, reply.finish, scored, message=message)
      )
    kept = {'kaiju': self._about(messages.get(0))}
    return self._form.whole(choices, self._usage(), **kept)

  async def chunks(self) -> AsyncGenerator[bytes]:
    """Yields the events of the stream; after an error there is no [DONE]."""
    try:
      for index in range(len(self._replies)):
        yield self._chunk(index, {'role': 'assistant', 'content': ''})
      begun: set[int] = set()
      async with self._served() as pieces:
        async for index, piece in pieces:
          # The echo waits for the first piece: by then the prompt is judged.
          if self._echoed(index) and index not in begun:
            yield self._chunk(index, {'content': self._echoed(index)})
          begun.add(index)
          if piece is not None:
            if piece.reasoning:
              yield self._chunk(index, self._thought(piece.reasoning))
            if piece.text or piece.events or not piece.reasoning:
              yield self._chunk(index, {'content': piece.text}, piece.events)
            continue
          message = await self._keep(index)
          if self._replies[index].is_prompt_refused:
            yield self._chunk(index, {'refusal': _REFUSED})
          finish = self._replies[index].finish
          yield self._form.chunk(
            [stream.choice(index, finish, delta={})],
            kaiju=self._about(message),
            **self._counted(),
          )
      if self._chat.includes_usage:
        yield self._form.chunk([], usage=self._usage())
      yield stream.DONE
    except errors.ApiError as error:
      yield stream.break_stream(self._context, error)

  @contextlib.asynccontextmanager
  async def _served(self):
    """Yields the pieces of the replies; stores cut replies at the end."""
    try:
      async with self._choices.serve() as pieces:
        yield pieces
    finally:
      for index, reply in enumerate(self._replies):
        if index not in self._kept and (reply.text or reply.reasoning):
          task = asyncio.create_task(self._keep(index, 'cancelled'))
          _KEEPING.add(task)
          task.add_done_callback(_forget)

  async def _keep(self, index: int, finish: str | None = None) -> int | None:
    """Stores a reply; returns its message's id, or None without a session."""
    self._kept.add(index)
    reply = self._replies[index]
    return await store_lib.keep_reply(
      self._context.store,
      self._context.memo,
      self._turn,
      reply,
      finish or reply.finish,
      self._drawn[index],
    )

  def _echoed(self, index: int) -> str:
    """Returns the text that a reply continues, where it is to be repeated."""
    if not self._chat.echo or self._replies[index].is_prompt_refused:
      return ''
    return self._turn.begun

  def _chunk(self, index: int, delta: dict, events=()) -> bytes:
    scored = self._scored(index, events)
    one = stream.choice(index, None, scored, delta=delta)
    return self._form.chunk([one], **self._counted())

  def _counted(self) -> dict[str, Any]:
    """Returns the usage so far, where each chunk has it."""
    return {'usage': self._usage()} if self._chat.counts_on else {}

  def _scored(self, index: int, events) -> dict | None:
    if not self._chat.logprobs or not events:
      return None
    return stream.chat_log_probabilities(self._spellers[index], events)

  def _thought(self, text: str | None) -> dict[str, str | None]:
    """Returns the fields of reasoning; none for a model without."""
    if self._turn.format.thought is None:
      return {}
    return {'reasoning': text, 'reasoning_content': text}

  def _usage(self) -> dict[str, Any]:
    thought = None
    if self._turn.format.thought is not None:
      thought = sum(reply.thought for reply in self._replies)
    return stream.usage(
      len(self._turn.prompt.tokens),
      self._choices.drawn,
      self._replies[0].reused,
      thought,
    )

  def _about(self, message: int | None) -> dict[str, Any]:
    """Returns the answer's field `kaiju`, for what OpenAI has no field for."""
    return {
      'session': self._turn.conversation,
      'message': message,
      'prompt_tokens': len(self._turn.prompt.tokens),
      'cached_tokens': self._replies[0].reused,
      'dropped_messages': self._turn.prompt.dropped,
    }


def _forget(task: asyncio.Task) -> None:
  """Drops a finished task of `_KEEPING`, and logs its error."""
  _KEEPING.discard(task)
  error = task.exception()
  if error is not None:
    _LOG.warning('A reply was not stored: %s.', type(error).__name__)


def _refuse(
  form: stream.Form, chat: fields.Chat, turn: store_lib.PendingTurn
) -> responses.Response:
  """Answers a message that the gate blocked."""
  message = {'role': 'assistant', 'content': '', 'refusal': _REFUSED}
  filtered = 'content_filter'
  whole, chunks = [], []
  for n in range(chat.choices):
    whole.append(stream.choice(n, filtered, message=message))
    chunks.append(stream.choice(n, delta=message))
    chunks.append(stream.choice(n, filtered, delta={}))
  usage = stream.usage(len(turn.prompt.tokens), 0, 0)
  return stream.answer_blocked(form, chat, whole, chunks, usage)
