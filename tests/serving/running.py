"""A whole server over real sockets, whose engine needs no model.

The device is `fake_device`'s: what is drawn follows from the text and the seed.
Its tokens read as letters, so that replies are text.
"""

from collections.abc import Callable
from collections.abc import Iterator
import contextlib
import functools
import json
import time
from typing import Any
import urllib.error
import urllib.request

import numpy as np
import openai

from kaiju_jax.characters.cards import card_fields
from kaiju_jax.characters.prompts import prompt
from kaiju_jax.data import chat as chat_format
from kaiju_jax.data import tokenizer as tokenizer_lib
from kaiju_jax.decoding.engine import admission
from kaiju_jax.serving.http import auth
from kaiju_jax.serving.http import limits
from kaiju_jax.serving.http import metrics
from kaiju_jax.serving.http import server as server_lib
from kaiju_jax.serving.replies import worker
from kaiju_jax.serving.routes import api
from kaiju_jax.serving.routes import context as context_lib
from kaiju_jax.serving.routes import operations
from kaiju_jax.serving.routing import replica as replica_lib
from kaiju_jax.serving.routing import router
from kaiju_jax.serving.safety import moderation
from kaiju_jax.serving.stores import characters
from kaiju_jax.serving.stores import conversing
from kaiju_jax.serving.stores import sqlite_store
from tests.serving import leftovers
from tests.serving import world
from tests.serving.http import exposed

SECRET = b'of the fleet' * 3
MODEL, CHARACTER, LENGTH = 'toy', 'mira', 1024
CHAT, TEXT = '/v1/chat/completions', '/v1/completions'
CARDS, SESSIONS = '/v1/characters', '/v1/sessions'
FIELDS = card_fields.Fields(
  name='Mira',
  description='{{char}} keeps a lighthouse and knows every star by name.',
  personality='calm, curious',
  greeting='Good evening, {{user}}. The lamp is lit.',
  alternate_greetings=('You came by boat?', 'Mind the stairs.'),
)


class Letters(tokenizer_lib.Bytes):
  """Bytes of text; what is no printable ASCII reads as a letter."""

  def decode(self, tokens) -> str:
    return ''.join(_letter(x) for x in np.asarray(tokens).tolist() if x)


def _letter(token: int) -> str:
  is_itself = 32 <= token < 127 or token in (1, 2, 3, 10)
  return chr(token) if is_itself else chr(ord('a') + token % 26)


def said(*texts: str, role: str = 'user') -> list[dict]:
  """Returns messages of one role."""
  return [{'role': role, 'content': text} for text in texts]


def chat(text: str | list | None = 'Hello', **fields) -> dict:
  """Returns a chat's body; the text may be messages, or None for none."""
  messages = said(text) if isinstance(text, str) else text or []
  drawn = {'model': MODEL, 'max_tokens': 12, 'seed': 3}
  return drawn | {'messages': messages} | fields


def complete(prompt: str | list = 'Hello', **fields) -> dict:
  """Returns a completion's body."""
  drawn = {'model': MODEL, 'max_tokens': 12, 'seed': 3}
  return drawn | {'prompt': prompt} | fields


def cached(answer: dict) -> int:
  """Returns how many tokens of an answer's prompt were cached."""
  return answer['usage']['prompt_tokens_details']['cached_tokens']


def events(answer: bytes) -> list[dict]:
  """Returns the events of a stream, which must be whole."""
  *found, done = answer.decode().removesuffix('\n\n').split('\n\n')
  assert done == 'data: [DONE]'
  return [json.loads(one.removeprefix('data: ')) for one in found]


class Server:
  """A server that runs, and ways to reach it, as ann where nobody is named."""

  def __init__(self, context, server, tokens, workers):
    self.context: context_lib.Context = context
    self.store: conversing.Store = context.store.blocking
    self.workers: list[worker.Worker] = workers
    self.engine: world.Engine = workers[0].engine
    self.address: str = server.url
    self.server = server
    self.tokens: dict[str, str] = tokens
    version = self.store.version(CHARACTER, 1)
    self.prefix_length = len(version.tokens)

  def client(self, owner: str) -> openai.OpenAI:
    return openai.OpenAI(
      base_url=f'{self.address}/v1',
      api_key=self.tokens[owner],
      max_retries=0,
    )

  def get(self, path: str, **options) -> Any:
    return self.ask('GET', path, **options)

  def post(self, path: str, owner: str | None = None, **body) -> Any:
    return self.ask('POST', path, body, owner)

  def ask(
    self,
    method: str,
    path: str,
    body: dict | bytes | None = None,
    owner: str | None = None,
    kind: str = 'application/json',
  ) -> Any:
    """Returns the JSON of an answer; raises HTTPError for a refusal."""
    headers = {'Content-Type': kind}
    if owner is not None:
      headers['Authorization'] = f'Bearer {self.tokens[owner]}'
    data = json.dumps(body).encode() if isinstance(body, dict) else body
    request = urllib.request.Request(
      self.address + path, data, headers, method=method
    )
    with urllib.request.urlopen(request, timeout=100) as answer:
      found = answer.read()
    is_json = 'json' in answer.headers.get_content_type()
    return json.loads(found) if is_json else found

  def refused(
    self,
    method: str,
    path: str,
    body: dict | bytes | None = None,
    owner: str | None = None,
    kind: str = 'application/json',
  ) -> tuple[int, dict]:
    """Returns the status and the error of a request that must fail."""
    try:
      self.ask(method, path, body, owner, kind)
    except urllib.error.HTTPError as caught:
      return caught.code, json.loads(caught.read())['error']
    raise AssertionError(f'{method} {path} is answered.')

  def chat(self, text='Hello', owner: str = 'ann', **fields) -> dict:
    return self.post(CHAT, owner, **chat(text, **fields))

  def stream(self, text='Hello', owner: str = 'ann', **fields) -> list[dict]:
    """Returns the events of a chat's stream."""
    body = chat(text, stream=True, **fields)
    return events(self.ask('POST', CHAT, body, owner))

  def streamed(
    self, text='Hello', owner: str = 'ann', **fields
  ) -> tuple[str, str | None]:
    """Returns the text and the reason of the choices of a chat's stream."""
    said, reason = '', None
    for event in self.stream(text, owner, **fields):
      for choice in event['choices']:
        said += choice['delta'].get('content') or ''
        reason = choice['finish_reason'] or reason
    return said, reason

  def complete(self, prompt='Hello', owner: str = 'ann', **fields) -> dict:
    return self.post(TEXT, owner, **complete(prompt, **fields))

  def refused_chat(self, text='Hello', owner: str = 'ann', **fields):
    """Returns the status and the error of a chat that must fail."""
    return self.refused('POST', CHAT, chat(text, **fields), owner)

  def open_session(
    self, owner: str = 'ann', character: str = CHARACTER, **fields
  ) -> str:
    """Returns the id of a new session."""
    made = self.post(SESSIONS, owner, character=character, **fields)
    return made['id']

  def session(self, name: str, owner: str = 'ann') -> dict:
    return self.get(f'{SESSIONS}/{name}', owner=owner)

  def publish(
    self,
    fields: dict,
    owner: str = 'ann',
    public: bool = False,
    to: str | None = None,
  ) -> dict:
    """Returns a new character, or the new version of the one `to` names."""
    body = {'fields': fields, 'public': public}
    method, path = ('PUT', f'{CARDS}/{to}') if to else ('POST', CARDS)
    return self.ask(method, path, body, owner)

  def count(self, name: str, **labels: str) -> float:
    """Returns a sample of the metrics; the name is without `kaiju_`."""
    told = exposed.samples(self.context.metrics)
    return told[f'kaiju_{name}', tuple(sorted(labels.items()))]

  def is_idle_soon(self, seconds: float = 60.0) -> bool:
    return not leftovers.within(
      seconds, lambda: leftovers.of_context(self.context)
    )


@contextlib.contextmanager
def server(
  folder,
  *,
  is_open: bool = True,
  key: str | None = None,
  queue: int = 64,
  rows: int = 4,
  pause: float = 0.0,
  store: conversing.Store | None = None,
  moderator: moderation.Moderator | None = None,
  lease: float | None = 30.0,
  kind: Callable[..., world.Engine] = world.Engine,
  engine: Callable[[Letters], world.Engine] | None = None,
  tokenizer: Letters | None = None,
  points: Callable[[Any, Any], Any] | None = None,
  replicas: int = 0,
  operator: str | None = None,
) -> Iterator[Server]:
  """Runs a server, with one character and tokens for two owners.

  Args:
    folder: for its files.
    is_open: whether this machine may ask without a token.
    key: of the person before it, where it is not open.
    queue: requests that wait at most.
    rows: sequences at once.
    pause: seconds of each of the engine's rounds.
    store: of characters; sqlite by default.
    moderator: decides what may be shown; nothing by default.
    lease: seconds that a stream stays unread.
    kind: makes an engine of the settings above.
    engine: makes the engine of a tokenizer alone, instead.
    tokenizer: of the model; `Letters` by default.
    points: makes what saves points, of the worker and the store; nothing saves
      them by default.
    replicas: how many a router stands before; 0 for a worker alone.
    operator: the key of operators' commands, on the metrics' port; None for no
      such port.
  """
  tokenizer = tokenizer or Letters()
  made = engine or functools.partial(
    kind,
    rows=rows,
    length=LENGTH,
    pages=2000,
    limits=admission.Limits(queue=queue, lease=lease),
  )
  workers = [worker.Worker(made(tokenizer)) for _ in range(max(replicas, 1))]
  if pause:
    for one in workers:
      one.engine.before_round = lambda: time.sleep(pause)
  written = chat_format.format_of(tokenizer)
  digest = tokenizer_lib.digest(tokenizer)
  store = store or sqlite_store.SqliteStore(folder / 'characters.sqlite')
  store.publish(
    characters.BUILT_IN,
    FIELDS,
    prompt.prefix(FIELDS, written),
    digest,
    CHARACTER,
    is_public=True,
  )
  held = auth.Tokens(folder / auth.FILE)
  tokens = {
    owner: held.add(owner, 'adult', rate=limits.LOCAL)
    for owner in ('ann', 'ben')
  }
  working = _route(workers) if replicas else workers[0]
  context = context_lib.Context(
    engines=working,
    model=context_lib.Model(MODEL, 1234, LENGTH, digest, 'a toy', 0, 'w1'),
    tokenizer=tokenizer,
    format=prompt.Encoded(written),
    store=store,
    access=auth.Access(held, is_open=is_open and key is None, key=key),
    limits=limits.Limits(),
    metrics=metrics.Metrics(working.read_engine),
    moderator=moderator or moderation.Moderator(),
    max_tokens=64,
    points=None if points is None else points(working, store),
  )
  if context.points is not None:
    context.points.restore()
  for one in workers:
    one.start()
  if context.points is not None:
    context.points.start()
  try:
    metrics_app = operator and operations.app(context, operator)
    with server_lib.running(api.app(context), metrics=metrics_app) as running:
      yield Server(context, running, tokens, workers)
    found = leftovers.within(5, lambda: leftovers.of_context(context))
    assert not found, found
  finally:
    if context.points is not None:
      context.points.stop()
    context.engines.stop()
    store.close()
  assert not leftovers.of_store(folder)
  assert replicas or context.engines.error is None


def _route(workers: list[worker.Worker]) -> router.Router:
  """Returns a router over workers, the replicas r0, r1 …"""
  made = router.Router(SECRET, router.Settings(max_wait_s=None))
  for number, one in enumerate(workers):
    named = replica_lib.Pseudonyms(SECRET)
    made.add(replica_lib.LocalReplica(f'r{number}', one, 'b1', named))
  return made
