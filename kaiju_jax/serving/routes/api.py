"""The application: all routes, and the handlers of the smaller ones.

    app = api.app(context)

It serves OpenAI's form (/v1/chat/completions, /v1/completions, /v1/models),
characters and sessions, the page, the operators' addresses (/healthz, /readyz,
/metrics), and vLLM's for evaluation clients, which lm-eval's
`local-completions` uses (/tokenizer_info, /tokenize, /detokenize). There a
prompt that is just the name of a special token, as /tokenizer_info gives it,
becomes that token; in any other text such a name is plain characters, as in the
prompts of all requests.
"""

import asyncio
import contextlib
import importlib.resources
import json
import pathlib
from typing import Annotated
from typing import Any

import numpy as np
import pydantic
from starlette import applications
from starlette import requests
from starlette import responses
from starlette import routing
from starlette import types

from kaiju_jax.decoding.requests import request as request_lib
from kaiju_jax.serving.http import bodies
from kaiju_jax.serving.http import edge
from kaiju_jax.serving.http import errors
from kaiju_jax.serving.http import exchange
from kaiju_jax.serving.routes import characters as character_routes
from kaiju_jax.serving.routes import chat
from kaiju_jax.serving.routes import completions
from kaiju_jax.serving.routes import context as context_lib
from kaiju_jax.serving.routes import fields
from kaiju_jax.serving.routes import lookup
from kaiju_jax.serving.routes import parse
from kaiju_jax.serving.routes import sessions as session_routes

_KINDS = {'.html': 'text/html', '.js': 'text/javascript', '.css': 'text/css'}
_PIECE = 4096  # Tokens that are written in one call.
# Characters that /v1/models lists beside the model.
_LISTED = 1000


def app(context: context_lib.Context) -> types.ASGIApp:
  """Returns the ASGI application of a server whose parts are `context`."""
  routes = [
    *_page_routes(),
    routing.Route('/v1/chat/completions', chat.completions, methods=['POST']),
    routing.Route('/v1/completions', completions.completions, methods=['POST']),
    routing.Route('/v1/models', models, methods=['GET']),
    routing.Route('/v1/models/{id:path}', model, methods=['GET']),
    routing.Route('/v1/server', server, methods=['GET']),
    routing.Route('/v1/key', key, methods=['POST']),
    *character_routes.ROUTES,
    *session_routes.ROUTES,
    routing.Route('/tokenizer_info', tokenizer_info, methods=['GET']),
    routing.Route('/tokenize', tokenize, methods=['POST']),
    routing.Route('/detokenize', detokenize, methods=['POST']),
    routing.Route('/healthz', healthz, methods=['GET']),
    routing.Route('/health', healthz, methods=['GET']),  # vLLM's name of it.
    routing.Route('/readyz', readyz, methods=['GET']),
  ]
  if context.access.is_local:
    # A server that other machines reach has a separate port for metrics.
    routes.append(routing.Route('/metrics', show_metrics, methods=['GET']))

  @contextlib.asynccontextmanager
  async def lifespan(_):
    await context.engines.begin()
    yield

  made = applications.Starlette(
    routes=routes, exception_handlers=errors.HANDLERS, lifespan=lifespan
  )
  made.state.context = context
  return edge.count_answers(made, context.metrics)


async def models(request: requests.Request) -> responses.Response:
  """GET /v1/models: lists the model, and `MODEL/CHARACTER` per character."""
  context, caller = await parse.authorize(request)
  found, _ = await lookup.find_all(context, caller, _LISTED)
  data = [_model(context, context.model.name)]
  data += [
    _model(context, f'{context.model.name}/{one.id}', one.name) for one in found
  ]
  return responses.JSONResponse({'object': 'list', 'data': data})


async def model(request: requests.Request) -> responses.Response:
  """GET /v1/models/{id}: describes the model, or it with a character."""
  context, caller = await parse.authorize(request)
  name = request.path_params['id']
  character = parse.find_character(context, name, None)
  if character is None:
    return responses.JSONResponse(_model(context, name))
  found = await lookup.find(context, caller, character)
  return responses.JSONResponse(_model(context, name, found.name))


async def server(request: requests.Request) -> responses.Response:
  """GET /v1/server: describes the model, moderation, and compilations."""
  context = request.app.state.context
  context.access.caller(request)
  engines = context.engines
  return responses.JSONResponse(
    {
      'object': 'server',
      'model': context.model.name,
      'origin': context.model.origin,
      'parameters': context.model.parameters,
      'license': context.model.license,
      'context': context.model.length,
      'moderated': context.moderator.mode != 'unmoderated',
      'guided': context.guide is not None,
      'chats': context.format is not None,
      'thinking': context.thinking is not None,
      'sampling': dict(context.chat_sampling),
      # Programs still compile after the start; no request waits for one.
      'warm': {'ready': engines.compiled, 'of': engines.compilations},
      'authentication': not context.access.is_open,
    }
  )


async def key(request: requests.Request) -> responses.Response:
  """POST /v1/key: stores the request's key as a cookie of the browser."""
  cookie = request.app.state.context.access.cookie(request)
  headers = {} if cookie is None else {'Set-Cookie': cookie}
  return responses.Response(status_code=204, headers=headers)


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


async def tokenizer_info(request: requests.Request) -> responses.Response:
  """GET /tokenizer_info: the names of the tokens that open and end a text."""
  context, _ = await parse.authorize(request)
  opening, ending = _special_names(context)
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


async def tokenize(request: requests.Request) -> responses.Response:
  """POST /tokenize: the tokens of a text, with or without the opening one."""
  context, caller = await parse.authorize(request)
  given = await parse.read_fields(request, context, caller, _Encoding)
  tokenizer, text = context.tokenizer, given.prompt

  def run() -> bytes:
    if text in _special_names(context):
      tokens = np.asarray([tokenizer.special(text)])
    else:
      opening = [tokenizer.bos_id] if given.add_special_tokens else []
      tokens = np.append(opening, tokenizer.encode(text)).astype(int)
    length = context.model.length
    return _write_tokens(
      {'count': len(tokens), 'max_model_len': length}, tokens
    )

  written = await context.texts.run(run, len(text))
  return responses.Response(written, media_type=bodies.JSON)


async def detokenize(request: requests.Request) -> responses.Response:
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


def _write_tokens(fields: dict[str, int], tokens: np.ndarray) -> bytes:
  """Returns JSON of fields and of tokens, which may be a million."""
  pieces = (
    json.dumps(tokens[at : at + _PIECE].tolist())[1:-1]
    for at in range(0, len(tokens), _PIECE)
  )
  return (
    f'{json.dumps(fields)[:-1]}, "tokens": [{", ".join(pieces)}]}}'.encode()
  )


def _special_names(context: context_lib.Context) -> tuple[str, str]:
  """Returns the names of the tokens that open a text and that end one."""
  tokenizer = context.tokenizer
  ending = context.ends[0] if context.ends else tokenizer.bos_id
  return tokenizer.name(tokenizer.bos_id), tokenizer.name(ending)


async def healthz(request: requests.Request) -> responses.Response:
  """GET /healthz: answers 200 while an engine lives."""
  context = request.app.state.context
  if context.engines.is_alive:
    return responses.PlainTextResponse('ok\n')
  return responses.PlainTextResponse('the engine has failed\n', 500)


async def readyz(request: requests.Request) -> responses.Response:
  """GET /readyz: answers 200 while requests are taken and can be stored."""
  context = request.app.state.context
  if context.moderator.mode == 'closed':
    return responses.PlainTextResponse(f'{context_lib.CLOSED}\n', 503)
  if not context.takes_requests:
    return responses.PlainTextResponse('not ready\n', 503)
  try:
    await context.store.check()
  except errors.ApiError as error:
    exchange.find(request).note_end('store')
    return responses.PlainTextResponse(f'not ready: {error.message}\n', 503)
  return responses.PlainTextResponse('ready\n')


async def show_metrics(request: requests.Request) -> responses.Response:
  """GET /metrics: answers Prometheus, from a thread that waits for a round."""
  context = request.app.state.context
  context.access.caller(request)
  return await asyncio.to_thread(context.metrics.answer, request)


def _page_routes() -> list[routing.Route]:
  """Returns the routes of the page's files; '/' is index.html."""
  folder = importlib.resources.files('kaiju_jax.serving').joinpath('page')
  return [
    _page_route(file.name, file.read_bytes())
    for file in sorted(folder.iterdir(), key=lambda file: file.name)
  ]


def _page_route(name: str, body: bytes) -> routing.Route:
  headers = {
    'Content-Security-Policy': edge.PAGE_POLICY,
    'Cache-Control': 'no-cache',
  }
  kind = _KINDS[pathlib.PurePath(name).suffix]

  async def answer(request: requests.Request) -> responses.Response:
    request.app.state.context.access.check_site(request)
    return responses.Response(body, 200, headers, kind)

  path = '/' if name == 'index.html' else f'/{name}'
  return routing.Route(path, answer, methods=['GET'])


def _model(
  context: context_lib.Context, name: str, title: str | None = None
) -> dict[str, Any]:
  return {
    'id': name,
    'object': 'model',
    'created': context.model.created,
    'owned_by': 'kaiju_jax',
    'name': title or name,
    'max_model_len': context.model.length,
  }
