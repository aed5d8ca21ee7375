"""Stage 5 of a request, stream: answers in OpenAI's form, as they are drawn.

An answer is sent whole, or as server-sent events, one for each piece of text.
"""

import asyncio
from collections.abc import AsyncGenerator
from collections.abc import Coroutine
from collections.abc import Iterable
from collections.abc import Sequence
import json
import secrets
import time
from typing import Any
from typing import NamedTuple

from starlette import requests
from starlette import responses

from kaiju_jax.data import tokenizer as tokenizer_lib
from kaiju_jax.decoding.requests import request as request_lib
from kaiju_jax.decoding.requests import stop
from kaiju_jax.serving.http import errors
from kaiju_jax.serving.routes import context as context_lib
from kaiju_jax.serving.routes import fields
from kaiju_jax.serving.stores import characters

# What a tokenizer gives for bytes that are no character.
_UNREADABLE = '\ufffd'
DONE = b'data: [DONE]\n\n'
_ESCAPED = {one: f'\\u{one:04x}' for one in (0x85, 0x2028, 0x2029)}


class Form:
  """The fields that all chunks of one answer share, such as its id.

  Args:
    kind: 'chat.completion' or 'text_completion'.
    model: the model's name in the API.
    fingerprint: names the weights and the program that draw.
  """

  def __init__(self, kind: str, model: str, fingerprint: str):
    prefix = 'chatcmpl' if kind.startswith('chat') else 'cmpl'
    self._kind = kind
    self._head = {
      'id': f'{prefix}-{secrets.token_hex(12)}',
      'created': int(time.time()),
      'model': model,
      'system_fingerprint': fingerprint,
    }

  def whole(
    self, choices: Sequence[dict[str, Any]], usage: dict[str, Any], **extra: Any
  ) -> dict[str, Any]:
    """Returns an answer that does not stream."""
    return {
      **self._head,
      'object': self._kind,
      'choices': list(choices),
      'usage': usage,
      **extra,
    }

  def chunk(self, choices: Sequence[dict[str, Any]], **extra: Any) -> bytes:
    """Returns a chunk of a stream, as a server-sent event."""
    kind = self._kind
    if kind.startswith('chat'):
      kind += '.chunk'
    return encode_event(
      {**self._head, 'object': kind, 'choices': list(choices), **extra}
    )


def choice(
  index: int,
  finish: str | None = None,
  scored: dict[str, Any] | None = None,
  **said,
) -> dict[str, Any]:
  """Returns an entry of an answer's `choices`, or of a chunk's."""
  return {'index': index, **said, 'logprobs': scored, 'finish_reason': finish}


def encode_event(body: dict[str, Any]) -> bytes:
  """Returns a server-sent event."""
  text = json.dumps(body, ensure_ascii=False, separators=(',', ':'))
  # Some clients end lines at more characters than the format does.
  return f'data: {text.translate(_ESCAPED)}\n\n'.encode()


class EventStream(responses.StreamingResponse):
  """A response of server-sent events, with headers against proxies' buffers."""

  def __init__(self, chunks: AsyncGenerator[bytes]):
    """Takes over a stream of events."""
    super().__init__(
      chunks,
      media_type='text/event-stream',
      headers={'Cache-Control': 'no-cache', 'X-Accel-Buffering': 'no'},
    )
    self._chunks = chunks

  async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
    try:
      await super().__call__(scope, receive, send)
    finally:
      await self._chunks.aclose()


def page(
  data: list[dict[str, Any]],
  found: Sequence[characters.Character | characters.Session],
  has_more: bool,
) -> dict[str, Any]:
  """Returns a page of a listing, in OpenAI's form.

  Args:
    found: the same entries as the store returned them.
    has_more: whether there may be more entries.

  Returns:
    The page; the query parameter `after` set to its `after` gives the next one.
  """
  return {
    'object': 'list',
    'data': data,
    'has_more': has_more,
    'after': characters.cursor(found[-1]) if found else None,
  }


async def write_json(
  context: context_lib.Context, value: Any, status: int = 200
) -> responses.JSONResponse:
  """Returns an answer whose JSON is long, and is written in a thread."""
  return await context.texts.run(lambda: responses.JSONResponse(value, status))


def answer_blocked(
  form: Form,
  asked: fields.Generation,
  whole: Sequence[dict[str, Any]],
  chunks: Sequence[dict[str, Any]],
  usage: dict[str, Any],
) -> responses.Response:
  """Answers a prompt that the gate blocked, as one that the head blocked.

  Args:
    form: the answer's.
    asked: the request's fields.
    whole: the choices of an answer that does not stream.
    chunks: the choices of a stream, a chunk each.
    usage: the answer's.
  """
  if not asked.stream:
    return responses.JSONResponse(form.whole(whole, usage))

  async def events() -> AsyncGenerator[bytes]:
    for one in chunks:
      yield form.chunk([one])
    if asked.includes_usage:
      yield form.chunk([], usage=usage)
    yield DONE

  return EventStream(events())


def usage(
  prompt: int, completion: int, reused: int, thought: int | None = None
) -> dict[str, Any]:
  """Returns the `usage` object of an answer.

  Args:
    prompt: number of the prompt's tokens.
    completion: number of drawn tokens, over all choices.
    reused: number of the prompt's tokens that the first choice found in the
      cache.
    thought: number of the shown reasoning's tokens; None for a model without.
  """
  details = {'completion_tokens_details': {'reasoning_tokens': thought}}
  return {
    'prompt_tokens': prompt,
    'completion_tokens': completion,
    'total_tokens': prompt + completion,
    'prompt_tokens_details': {'cached_tokens': reused},
    **({} if thought is None else details),
  }


class Spelled(NamedTuple):
  """A token of a text.

  It may be a part of a character. Then its bytes alone say what it is, and its
  text names them, as OpenAI's does: 'bytes:\\xe2\\x82'. It begins where its
  character does.
  """

  text: str  # What it reads as.
  bytes: bytes  # What it adds to the text, in UTF-8.
  begin: int  # The characters of the text before it.
  # Log-probabilities of the alternatives in its place, by token; of those that
  # read alike, the likeliest.
  others: dict[bytes, float]


class Speller:
  """Spells the tokens of one text, in order."""

  def __init__(
    self,
    tokenizer: tokenizer_lib.Tokenizer,
    offset: int = 0,
    begun: Sequence[int] = (),
  ):
    """Begins before the first token.

    Args:
      offset: the number of characters shown before the text.
      begun: the tokens that the text continues.
    """
    self._tokenizer = tokenizer
    self._characters = stop.Characters(tokenizer)
    self._characters.begin(begun)
    self._is_first = not len(begun)
    self._offset = offset

  def spell(self, token: int, others: request_lib.Alternatives = ()) -> Spelled:
    """Returns the next token; `others` are the alternatives in its place."""
    found: dict[bytes, float] = {}
    for other, log_probability in others:
      spelled = self._spell(other)
      found[spelled] = max(found.get(spelled, log_probability), log_probability)
    own, begin = self._spell(token), self._offset
    self._offset += len(self._characters.push(token))
    self._is_first = self._is_first and not own
    return Spelled(spell_out(own), own, begin, found)

  def _spell(self, token: int) -> bytes:
    if self._is_first:
      # Some tokenizers drop the space at the beginning of a text.
      text = self._tokenizer.decode([token])
      if _UNREADABLE not in text:
        return text.encode()
    return self._tokenizer.spell(token)


def spell_out(spelled: bytes) -> str:
  """Returns a token's bytes as text."""
  try:
    return spelled.decode()
  except UnicodeDecodeError:
    return 'bytes:' + ''.join(f'\\x{one:02x}' for one in spelled)


def chat_log_probabilities(
  speller: Speller, events: Iterable[request_lib.Event]
) -> dict[str, Any]:
  """Returns the next tokens' log-probabilities in the format of chats.

  The token that ends a message is left out. Alternatives with the same text are
  listed once, with the largest log-probability.
  """
  content = []
  for event in events:
    if event.reason == 'stop_token':
      continue
    one = speller.spell(event.token, event.alternatives)
    content.append(
      {
        **_chat_entry(one.bytes, event.log_probability),
        'top_logprobs': [_chat_entry(*other) for other in one.others.items()],
      }
    )
  return {'content': content, 'refusal': None}


def _chat_entry(spelled: bytes, log_probability: float) -> dict[str, Any]:
  return {
    'token': spell_out(spelled),
    'logprob': log_probability,
    'bytes': list(spelled),
  }


def text_log_probabilities(
  speller: Speller,
  tokens: Sequence[int],
  log_probabilities: Sequence[float | None],
  alternatives: Sequence[request_lib.Alternatives] | None = None,
) -> dict[str, Any]:
  """Returns the next tokens' log-probabilities in the format of completions.

  Args:
    speller: of the text.
    tokens: tokens of a prompt or of an answer.
    log_probabilities: one per token; None for a text's first token.
    alternatives: those of each token; None where none are requested. The token
      itself is among them, also where it is not one of the likeliest.
  """
  spelled = [
    speller.spell(token, () if own is None else [*others, (token, own)])
    for token, own, others in zip(
      tokens, log_probabilities, alternatives or [()] * len(tokens)
    )
  ]
  likeliest = None
  if alternatives is not None:
    likeliest = [
      {spell_out(other): value for other, value in one.others.items()} or None
      for one in spelled
    ]
  return {
    'tokens': [one.text for one in spelled],
    'token_logprobs': list(log_probabilities),
    'top_logprobs': likeliest,
    'text_offset': [one.begin for one in spelled],
  }


def break_stream(context: context_lib.Context, error: errors.ApiError) -> bytes:
  """Returns the event of an error that ends a stream, and counts the server's.

  The answer has begun with status 200, so its status does not show it.
  """
  if error.status >= 500:
    context.metrics.failed.labels('stream').inc()
  return errors.event(error)


async def answer_client(
  request: requests.Request, answer: Coroutine[Any, Any, dict[str, Any]]
) -> dict[str, Any]:
  """Awaits an answer, and cancels it if the client leaves first.

  Raises:
    requests.ClientDisconnect: the client has left.
  """
  made = asyncio.ensure_future(answer)
  gone = asyncio.ensure_future(_wait_for_disconnect(request))
  try:
    await asyncio.wait([made, gone], return_when=asyncio.FIRST_COMPLETED)
    if not made.done():
      made.cancel()
      await asyncio.gather(made, return_exceptions=True)
      raise requests.ClientDisconnect
    return await made
  finally:
    gone.cancel()
    made.cancel()


async def _wait_for_disconnect(request: requests.Request) -> None:
  while (await request.receive())['type'] != 'http.disconnect':
    pass
