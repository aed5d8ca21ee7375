"""Tokens: encodes and decodes text as the model does, for evaluation clients.

The addresses and fields are vLLM's, which lm-eval's `local-completions` uses:
/tokenizer_info, /tokenize, /detokenize. A prompt that is just the name of a
special token, as /tokenizer_info tells it, becomes that token; in any other
text such a name is plain characters, as in the prompts of all requests.
"""

import json
from typing import Annotated

import numpy as np
import pydantic
from starlette import requests
from starlette import responses
from starlette import routing

from kaiju_jax.decoding.requests import request as request_lib
from kaiju_jax.serving.http import bodies
from kaiju_jax.serving.http import errors
from kaiju_jax.serving.routes import context as context_lib
from kaiju_jax.serving.routes import fields
from kaiju_jax.serving.routes import parse

_PIECE = 4096  # Tokens that are written in one call.


class _Encoding(parse.Fields):
  """The fields of POST /tokenize; `add_special_tokens` opens a document."""

  prompt: fields.TEXT
  add_special_tokens: bool = True
  model: str | None = None


class _Decoding(parse.Fields):
  """The fields of POST /detokenize."""

  VALUES = bodies.VALUES_OF_TOKENS

  tokens: Annotated[list[int], pydantic.FailFast(), fields.limit_entries(2**17)]
  model: str | None = None


async def describe(request: requests.Request) -> responses.Response:
  """GET /tokenizer_info: the names of the tokens that open and end a text."""
  context, _ = await parse.authorize(request)
  opening, ending = _names(context)
  return responses.JSONResponse(
    {
      'bos_token': opening,
      'eos_token': ending,
      'pad_token': None,
      'chat_template': None,
      'vocab_size': context.tokenizer.vocab_size,
      'max_model_len': context.model.length,
    }
  )


async def encode(request: requests.Request) -> responses.Response:
  """POST /tokenize: the tokens of a text, with or without the opening one."""
  context, caller = await parse.authorize(request)
  given = await parse.read_fields(request, context, caller, _Encoding)
  tokenizer, text = context.tokenizer, given.prompt

  def run() -> bytes:
    if text in _names(context):
      tokens = np.asarray([tokenizer.special(text)])
    else:
      opening = [tokenizer.bos_id] if given.add_special_tokens else []
      tokens = np.append(opening, tokenizer.encode(text)).astype(int)
    length = context.model.length
    return _write({'count': len(tokens), 'max_model_len': length}, tokens)

  written = await context.texts.run(run, len(text))
  return responses.Response(written, media_type=bodies.JSON)


async def decode(request: requests.Request) -> responses.Response:
  """POST /detokenize: the text of tokens."""
  context, caller = await parse.authorize(request)
  given = await parse.read_fields(request, context, caller, _Decoding)
  tokenizer = context.tokenizer

  def run() -> str:
    if not given.tokens:
      return ''
    tokens = request_lib.check_tokens(
      given.tokens, tokenizer.vocab_size, 'tokens'
    )
    return tokenizer.decode(tokens)

  try:
    text = await context.texts.run(run, len(given.tokens))
  except (TypeError, ValueError, OverflowError) as error:
    raise errors.invalid(str(error), param='tokens') from error
  return responses.JSONResponse({'prompt': text})


def _write(fields: dict[str, int], tokens: np.ndarray) -> bytes:
  """Returns JSON of fields and of tokens, which may be a million."""
  pieces = (
    json.dumps(tokens[at : at + _PIECE].tolist())[1:-1]
    for at in range(0, len(tokens), _PIECE)
  )
  return (
    f'{json.dumps(fields)[:-1]}, "tokens": [{", ".join(pieces)}]}}'.encode()
  )


def _names(context: context_lib.Context) -> tuple[str, str]:
  """Returns the names of the tokens that open a text and that end one."""
  tokenizer = context.tokenizer
  ending = context.ends[0] if context.ends else tokenizer.bos_id
  return tokenizer.name(tokenizer.bos_id), tokenizer.name(ending)


ROUTES = [
  routing.Route('/tokenizer_info', describe, methods=['GET']),
  routing.Route('/tokenize', encode, methods=['POST']),
  routing.Route('/detokenize', decode, methods=['POST']),
]
