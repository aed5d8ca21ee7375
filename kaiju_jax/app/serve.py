"""Assembles a server from a trained model, and runs it.

    loaded = load.from_anywhere('runs/chat')
    settings = settings_lib.Settings(folder='server')
    context = serve.assemble(loaded, settings)
    serve.run(context, settings)  # until Ctrl-C

The server is one process and needs no other service: it keeps characters,
conversations and tokens in `Settings.folder`. Without tokens it listens on
loopback only and accepts requests with the key that it prints. An unmoderated
server listens on loopback only, too.
"""

import asyncio
from collections.abc import Callable
from collections.abc import Sequence
import pathlib
import socket
import time
from typing import NamedTuple

import numpy as np

from kaiju_jax.app import built_in
from kaiju_jax.app import server_folder
from kaiju_jax.app import serving_engine
from kaiju_jax.app import settings as settings_lib
from kaiju_jax.characters.prompts import prompt
from kaiju_jax.classifiers import heads
from kaiju_jax.costs import footprint
from kaiju_jax.data import chat as chat_format
from kaiju_jax.data import tokenizer as tokenizer_lib
from kaiju_jax.decoding.device import judge
from kaiju_jax.decoding.device import memory
from kaiju_jax.decoding.engine import engine as engine_lib
from kaiju_jax.decoding.requests import request as request_lib
from kaiju_jax.decoding.requests import sampling
from kaiju_jax.gates import promotion
from kaiju_jax.interchange import fields
from kaiju_jax.interchange.gguf import folder as gguf_folder
from kaiju_jax.model import config as model_config
from kaiju_jax.runs import defaults as defaults_lib
from kaiju_jax.runs import load
from kaiju_jax.serving.drift import calibration
from kaiju_jax.serving.http import limits as limits_lib
from kaiju_jax.serving.http import loopback
from kaiju_jax.serving.http import metrics
from kaiju_jax.serving.http import server as server_lib
from kaiju_jax.serving.replies import worker as worker_lib
from kaiju_jax.serving.routes import api
from kaiju_jax.serving.routes import context as context_lib
from kaiju_jax.serving.routes import operations
from kaiju_jax.serving.routing import replica as replica_lib

_SMALL = 10**9  # Parameters below which the greeting says what to expect.


class Beside(NamedTuple):
  """What is served beside a model's weights."""

  tokenizer: tokenizer_lib.Tokenizer
  defaults: defaults_lib.Defaults  # Of the model's folder.
  head: judge.Head | None  # The token-level head; None for none.


def load_model(
  settings: settings_lib.Settings, accepted: Sequence[str] = ()
) -> load.Loaded:
  """Returns the model that the settings name.

  `accepted` are unknown fields of its config.json that may pass.

  Raises:
    OSError, ValueError: as `load.from_anywhere` and `load.attach_adapters`.
  """
  if accepted:
    fields.accept(accepted)
  if not settings.lora:
    return settings.load(settings.model)
  if (settings.int8, settings.kv) != ('all', 'int8'):
    raise ValueError(
      f'--int8={settings.int8}, --kv={settings.kv}: must be all and int8 with'
      ' --lora, as the adapters were trained.'
    )
  with settings.reading(settings.lora):
    return load.attach_adapters(settings.lora, settings.model)


def read_beside(loaded: load.Loaded, settings: settings_lib.Settings) -> Beside:
  """Returns what the settings name beside a model; reads no weights of it.

  Raises:
    OSError, ValueError: something cannot be read, or does not fit the model.
  """
  tokenizer = tokenizer_lib.load(loaded.tokenizer, loaded.config.vocab_size)
  defaults = defaults_lib.read(
    loaded, tokenizer, settings.template, settings.thinking == 'keep'
  )
  model = heads.digest(loaded) if settings.head or settings.safety else ''
  d_model = loaded.config.d_model
  head = heads.find(settings.head, settings.safety, d_model, model)
  return Beside(tokenizer, defaults, head)


def check_promoted(loaded: load.Loaded, settings: settings_lib.Settings) -> str:
  """Returns a model's digest.

  Raises:
    OSError, ValueError: the settings have a policy, and it is not promoted.
  """
  weights = load.digest(loaded)
  if settings.policy:
    promotion.check(settings.policy, settings.promotion, weights)
  return weights


def assemble(
  loaded: load.Loaded,
  settings: settings_lib.Settings,
  say: Callable[[str], None] = print,
) -> context_lib.Context:
  """Returns the parts of a server, with a compiled and running engine.

  Messages for the user who waits go to `say`.

  Raises:
    OSError: a folder or a file cannot be read or written.
    ValueError: a setting is wrong; the server would answer other machines
      without tokens or without moderation; or the model is not promoted.
    characters.Unavailable: the store cannot be reached.
  """
  weights = check_promoted(loaded, settings)
  if settings.drift == 'watch':
    calibration.check(loaded.config)
  beside = read_beside(loaded, settings)
  for note in beside.defaults.notes():
    say(note)
  ours = beside.defaults.chat_sampling
  if ours and not beside.defaults.generation.sampling:
    said = defaults_lib.describe(ours)
    say(f'Sampling of chats, on which the model is silent: {said}.')
  if beside.defaults.format is None:
    say(
      'No chat template: it continues text (/v1/completions), without chats;'
      ' --template=FILE names one.'
    )
  # What is wrong is refused before anything compiles.
  opened = server_folder.open_parts(settings, beside.head, say)
  try:
    engine = serving_engine.make(
      loaded, beside.tokenizer, settings, beside.head, say
    )
    say(f'Compiling {loaded.origin} …')
    warm(engine)
    return _assemble(
      engine, beside, settings, loaded.origin, opened, weights, say
    )
  except BaseException:
    opened.store.close()
    raise


def assemble_around(
  engine: engine_lib.Engine,
  tokenizer: tokenizer_lib.Tokenizer,
  settings: settings_lib.Settings,
) -> context_lib.Context:
  """Returns the parts of a server around an engine without a head; starts it.

  Args:
    engine: an idle, warm engine that nothing else uses.
    tokenizer: of its model.
    settings: the server's; those of the engine are ignored.

  Raises:
    OSError, ValueError: as `assemble`.
  """
  opened = server_folder.open_parts(settings, None)
  defaults = defaults_lib.Defaults(chat_format.format_of(tokenizer))
  beside = Beside(tokenizer, defaults, None)
  return _assemble(engine, beside, settings, '', opened)


def _assemble(
  engine: engine_lib.Engine,
  beside: Beside,
  settings: settings_lib.Settings,
  origin: str,
  opened: server_folder.Parts,
  weights: str = '',
  say: Callable[[str], None] = print,
) -> context_lib.Context:
  """Returns the parts of a server around an engine, and starts it."""
  working = worker_lib.Worker(engine, on_compiled=memory.trim)
  made = assemble_over(
    working,
    engine.decoder.config,
    engine.decoder.length,
    beside,
    settings,
    origin,
    opened,
    weights,
  )
  made.points = serving_engine.open_points(
    working, settings, opened.store, made.model.digest, weights
  )
  serving_engine.restore_points(made.points, say)
  made.drift = serving_engine.watch_drift(
    working, settings, weights, made.metrics.show_drift
  )
  working.start()
  for part in made.points, made.drift:
    if part is not None:
      part.start()
  return made


def assemble_over(
  engines: replica_lib.Engines,
  config: model_config.ModelConfig,
  length: int,
  beside: Beside,
  settings: settings_lib.Settings,
  origin: str,
  opened: server_folder.Parts,
  weights: str = '',
) -> context_lib.Context:
  """Returns the parts of a server over engines, which need not run yet.

  Args:
    engines: a worker, or a router over several.
    config: of their model.
    length: tokens of a prompt and its reply that their rows hold.
    beside: of the model.
    settings: the server's.
    origin: a description of the model's source.
    opened: the parts that were checked before the engines were made.
    weights: digest of the model's weights and config.

  Raises:
    OSError: a file cannot be read or written.
    ValueError: the server's key is damaged.
  """
  tokenizer, defaults, head = beside
  written, thinking = defaults.format, defaults.thinking
  if written is None:
    digest = tokenizer_lib.digest(tokenizer)
  else:
    digest = built_in.digest(opened.store, tokenizer, written)
    built_in.publish(opened.store, written, digest, length)
  name = settings.name or pathlib.PurePath(origin.partition(',')[0]).stem
  return context_lib.Context(
    engines=engines,
    model=context_lib.Model(
      name=name or 'model',
      parameters=footprint.count(footprint.parameters(config)),
      length=length,
      digest=digest,
      origin=origin,
      created=int(time.time()),
      weights=weights,
      license=gguf_folder.license_of(origin),
    ),
    tokenizer=tokenizer,
    format=prompt.Encoded(written) if written else None,
    thinking=prompt.Encoded(thinking) if thinking else None,
    sampling=defaults.generation.sampling,
    chat_sampling=defaults.chat_sampling,
    ends=defaults.generation.ends,
    store=opened.store,
    access=opened.access,
    limits=limits_lib.Limits(),
    metrics=metrics.Metrics(engines.read_engine),
    moderator=opened.moderator,
    max_tokens=min(settings.max_tokens, length // 2),
    secret=server_folder.load_key(pathlib.Path(settings.folder)),
    guide=serving_engine.guide_of(head),
    guided_tokens=settings.guided,
    shows_unjudged=settings.unjudged_top_logprobs,
  )


def run(
  context: context_lib.Context,
  settings: settings_lib.Settings,
  say: Callable[[str], None] = print,
  listener: socket.socket | None = None,
  on_start: Callable[[], None] | None = None,
) -> None:
  """Answers requests until a signal; then replies have time to finish.

  Args:
    context: the parts from `assemble`; closed at the end.
    settings: those given to `assemble`.
    say: prints a message for the user.
    listener, on_start: as in `server.Server`.

  Raises:
    OSError: the port is taken, or the operator's key cannot be read.
    ValueError: others may read the operator's key.
  """
  stopping: list[asyncio.Task] = []

  def drain(seconds: float) -> None:
    context.is_ready = False
    say(f'Stopping: replies have {seconds:g} s to finish.')
    stopping.append(asyncio.create_task(context.engines.drain(seconds)))

  try:
    scraped = None
    if settings.metrics_port is not None:
      path = pathlib.Path(settings.folder) / loopback.OPERATOR_FILE
      scraped = operations.app(context, loopback.load_key(path))
    server = server_lib.Server(
      api.app(context),
      settings.host,
      settings.port,
      settings=server_lib.Settings(
        drain_seconds=settings.grace, unread_seconds=settings.lease
      ),
      metrics=scraped,
      metrics_port=settings.metrics_port or 0,
      on_drain=drain,
      on_start=on_start,
      listener=listener,
    )
    for line in greeting(context, server.url):
      say(line)
    server.run()
  finally:
    context.close()


def greeting(context: context_lib.Context, url: str) -> list[str]:
  """Returns the lines that the server prints when it starts."""
  model, key = context.model, context.access.key
  # A browser sends no fragment, so that no log of a proxy has the key.
  fragment = '' if key is None else f'#key={key}'
  name = 'none' if context.access.is_open else key or 'TOKEN'
  lines = [
    f'{model.name}: {model.parameters:,} parameters, {model.length:,} tokens'
    f'{model.license and ", license: "}{model.license}.',
    f'Chat:    {url}/{fragment}',
    f'OpenAI:  base_url={url}/v1, api_key={name}, model={model.name}',
  ]
  if model.parameters < _SMALL:
    lines.append('So small a model is often wrong.')
  if context.access.is_open:
    lines.append('Open: it answers all on this machine, proxies included.')
  if context.moderator.mode == 'unmoderated':
    lines.append('Unmoderated: it answers this machine alone.')
  return [*lines, 'Ctrl-C ends it.']


def warm(engine: engine_lib.Engine) -> None:
  """Compiles what any request needs, by running some; keeps no points.

  The worker's thread compiles the rest (`compiled.Rounds.compile_next`).
  """
  engine.warm(scores=True, puts_off=True)
  # Two pages that are recorded, as far as a row has room.
  room = max(engine.decoder.length - 2, 1)
  tokens = np.ones(min(2 * engine.decoder.account.page + 2, room), np.int32)
  drawn = min(2, engine.decoder.length - 1)
  greedy = sampling.Sampling(temperature=0)
  for _ in range(2):
    one = engine.submit(request_lib.Request(tokens, drawn, greedy))
    while one.reason is None:
      engine.advance()
  tree = engine.decoder.account.tree
  for point in list(tree.points()):
    tree.drop(point)
