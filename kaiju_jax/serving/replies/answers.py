"""Builds answers in OpenAI's format: whole ones, and the chunks of streams."""

from collections.abc import AsyncGenerator
from collections.abc import Iterable
from collections.abc import Sequence
import json
import secrets
import time
from typing import Any

from starlette import responses

from kaiju_jax.data import tokenizer as tokenizer_lib
from kaiju_jax.decoding.requests import request as request_lib

DONE = b'data: [DONE]\n\n'


class Form:
  """The fields that all chunks of one answer share, such as its id.

  Args:
    kind: 'chat.completion' or 'text_completion'.
    model: the model's name in the API.
  """

  def __init__(self, kind: str, model: str):
    prefix = 'chatcmpl' if kind.startswith('chat') else 'cmpl'
    self._kind = kind
    self._head = {
      'id': f'{prefix}-{secrets.token_hex(12)}',
      'created': int(time.time()),
      'model': model,
    }

  def whole(self, choices: Sequence[dict], usage: dict, **extra) -> dict:
    """Returns an answer that does not stream."""
    return {
      **self._head,
      'object': self._kind,
      'choices': list(choices),
      'usage': usage,
      **extra,
    }

  def chunk(self, choices: Sequence[dict], **extra) -> bytes:
    """Returns a chunk of a stream, as a server-sent event."""
    kind = self._kind
    if kind.startswith('chat'):
      kind += '.chunk'
    return encode_event(
      {**self._head, 'object': kind, 'choices': list(choices), **extra}
    )


def encode_event(body: dict[str, Any]) -> bytes:
  """Returns a server-sent event."""
  text = json.dumps(body, ensure_ascii=False, separators=(',', ':'))
  return f'data: {text}\n\n'.encode()


class Streamed(responses.StreamingResponse):
  """A response of server-sent events, with headers against proxies' buffers."""

  def __init__(self, chunks: AsyncGenerator[bytes]):
    """Takes over a stream of events."""
    super().__init__(
      chunks,
      media_type='text/event-stream',
      headers={'Cache-Control': 'no-cache', 'X-Accel-Buffering': 'no'},
    )
    self._chunks = chunks

  async def __call__(self, scope, receive, send) -> None:
    try:
      await super().__call__(scope, receive, send)
    finally:
      await self._chunks.aclose()


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


def chat_log_probabilities(
  tokenizer: tokenizer_lib.Tokenizer, events: Iterable[request_lib.Event]
) -> dict[str, Any]:
  """Returns the tokens' log-probabilities in the format of chats.

  The token that ends a message is left out. Alternatives with the same text are
  listed once, with the largest log-probability.
  """
  content = []
  for event in events:
    if event.reason == 'stop_token':
      continue
    text = tokenizer.decode([event.token])
    others = _by_text(tokenizer, event.alternatives)
    content.append(
      {
        **_chat_entry(text, event.log_probability),
        'top_logprobs': [_chat_entry(*one) for one in others.items()],
      }
    )
  return {'content': content, 'refusal': None}


def _chat_entry(text: str, log_probability: float) -> dict[str, Any]:
  # A token that is part of a character has no text of its own.
  found = None if '\ufffd' in text else list(text.encode())
  return {'token': text, 'logprob': log_probability, 'bytes': found}


def _by_text(
  tokenizer: tokenizer_lib.Tokenizer, pairs: request_lib.Alternatives
) -> dict[str, float]:
  """Returns log-probabilities by text; of equal texts the largest."""
  found: dict[str, float] = {}
  for token, log_probability in pairs:
    text = tokenizer.decode([token])
    found[text] = max(found.get(text, log_probability), log_probability)
  return found


def text_log_probabilities(
  tokenizer: tokenizer_lib.Tokenizer,
  tokens: Sequence[int],
  log_probabilities: Sequence[float | None],
  offset: int = 0,
  alternatives: Sequence[request_lib.Alternatives] | None = None,
) -> dict[str, Any]:
  """Returns the tokens' log-probabilities in the format of completions.

  Args:
    tokenizer: the model's tokenizer.
    tokens: tokens of a prompt or of an answer.
    log_probabilities: one per token; None for a text's first token.
    offset: the number of characters before the first token.
    alternatives: those of each token; None where none are requested. The token
      itself is among them, also where it is not one of the likeliest.
  """
  texts = [tokenizer.decode([token]) for token in tokens]
  offsets = []
  for text in texts:
    offsets.append(offset)
    offset += len(text)
  likeliest = None
  if alternatives is not None:
    likeliest = [
      None if own is None else _by_text(tokenizer, [*others, (token, own)])
      for token, own, others in zip(tokens, log_probabilities, alternatives)
    ]
  return {
    'tokens': texts,
    'token_logprobs': list(log_probabilities),
    'top_logprobs': likeliest,
    'text_offset': offsets,
  }
