"""Serves a load over HTTP, beside the engine without it.

The server is `serving/routes/api.py` over real sockets in a thread of this
process, as `experiments.serve` runs it; the clients are a process of their own
(`http_load.py`). The same engine serves both ways, so that a ratio is of one
run and one compilation.
"""

import asyncio
from collections.abc import Iterator
from collections.abc import Sequence
import contextlib
import json
import pathlib
import random
import subprocess
import sys
from typing import NamedTuple

import httpx
import numpy as np

from kaiju_jax.app import serve as serve_lib
from kaiju_jax.app import settings as settings_lib
from kaiju_jax.data import tokenizer as tokenizer_lib
from kaiju_jax.decoding.engine import engine as engine_lib
from kaiju_jax.experiments.benchmarks.load_test import engine_serving
from kaiju_jax.experiments.benchmarks.load_test import load
from kaiju_jax.serving.http import auth
from kaiju_jax.serving.http import limits
from kaiju_jax.serving.http import server as server_lib
from kaiju_jax.serving.routes import api
from kaiju_jax.serving.routes import context as context_lib

MODEL = 'bench'


class Numbers(tokenizer_lib.Bytes):
  """A tokenizer for a model without one: bytes, and tokens as numbers."""

  def __init__(self, vocab_size: int):
    self.vocab_size = vocab_size

  def decode(self, tokens) -> str:
    return ''.join(
      chr(token) if token < 128 else f'<{token}>'
      for token in np.asarray(tokens).tolist()
      if token != self.bos_id
    )


class Served(NamedTuple):
  """A server that runs."""

  context: context_lib.Context  # Its parts.
  address: str  # Its URL.
  tokens: tuple[str, str]  # Of two owners.


@contextlib.contextmanager
def serve(engine: engine_lib.Engine, folder: pathlib.Path) -> Iterator[Served]:
  """Yields a server over an engine, which nobody else uses meanwhile.

  Args:
    engine: idle; what it compiles is compiled.
    folder: for the server's files.
  """
  held = auth.Tokens(folder / auth.FILE)
  tokens = tuple(held.add(name, rate=limits.LOCAL) for name in ('ann', 'ben'))
  settings = settings_lib.Settings(folder=str(folder), name=MODEL)
  tokenizer = Numbers(engine.decoder.config.vocab_size)
  context = serve_lib.assemble_around(engine, tokenizer, settings)
  try:
    with server_lib.running(api.app(context)) as server:
      yield Served(context, server.url, tokens)
  finally:
    context.close()


def without_http(
  server: Served, arrivals: Sequence[load.Arrival]
) -> list[load.Timeline]:
  """Serves a load by the same engine, in its thread, without the server."""
  engine = server.context.engines.engine

  def serve():
    engine_serving.forget(engine)
    return engine_serving.serve(engine, arrivals)

  return asyncio.run(server.context.engines.call(serve))


def over_http(
  server: Served, arrivals: Sequence[load.Arrival]
) -> list[load.Timeline]:
  """Serves a load over HTTP in real time, greedily.

  Returns:
    The timelines, in the order of the arrivals. They hold when tokens came, not
    which they are.
  """
  worker = server.context.engines
  asyncio.run(worker.call(lambda: engine_serving.forget(worker.engine)))
  messages = [
    {
      'seconds': one.seconds,
      'tokens': one.tokens.tolist(),
      'max_tokens': one.max_tokens,
    }
    for one in arrivals
  ]
  done = subprocess.run(
    [
      sys.executable,
      '-m',
      f'{__package__}.http_load',
      server.address,
      MODEL,
    ],
    input=json.dumps({'token': server.tokens[0], 'arrivals': messages}),
    stdout=subprocess.PIPE,
    text=True,
    check=True,
  )
  return [
    load.Timeline(
      arrival, np.zeros(one['tokens'], np.int32), np.array(one['seconds'])
    )
    for arrival, one in zip(arrivals, json.loads(done.stdout))
  ]


class Reused(NamedTuple):
  """Which part of their prompts' tokens was in the cache."""

  second_turn: float  # Of a conversation's second turn.
  second_user: float  # Of another user's first turn with the same character.


def measure_reuse(server: Served, length: int) -> Reused:
  """Talks to a character of about `length` tokens, as `usage` tells it."""
  words = random.Random(0)
  letters = 'abcdefghijklmnopqrstuvwxyz     '
  description = ''.join(words.choice(letters) for _ in range(length))
  fields = {'name': 'Mira', 'description': description, 'greeting': 'Hello.'}
  ann, ben = server.tokens
  made = _ask(server, ann, 'characters', {'fields': fields, 'public': True})[
    'id'
  ]

  def turn(token: str, session: str, text: str) -> float:
    answer = _ask(
      server,
      token,
      'chat/completions',
      {
        'model': MODEL,
        'session': session,
        'messages': [{'role': 'user', 'content': text}],
        'max_tokens': 32,
      },
    )
    usage = answer['usage']
    cached = usage['prompt_tokens_details']['cached_tokens']
    return cached / usage['prompt_tokens']

  opened = {'character': made}
  first = _ask(server, ann, 'sessions', opened)['id']
  turn(ann, first, 'Good morning')
  second = turn(ann, first, 'And then?')
  other = _ask(server, ben, 'sessions', opened)['id']
  return Reused(second, turn(ben, other, 'Good evening'))


def _ask(server: Served, token: str, path: str, body: dict) -> dict:
  answer = httpx.post(
    f'{server.address}/v1/{path}',
    json=body,
    headers={'Authorization': f'Bearer {token}'},
    timeout=600,
  )
  return answer.raise_for_status().json()
