"""Serve a model: a page to chat with characters, and OpenAI's HTTP interface.

    make chat                       # downloads a small model, or trains one
    python -m experiments.serve --model=runs/tiny --port=0
    python -m experiments.serve --model=runs/tiny --ray=auto --replicas=2

Characters and conversations lie in a sqlite file in --folder. It answers this
machine alone, by a key that it prints, or none with --open. With --host
it answers others, who need a token each (--add_token), a gate and a head
(--safety, --head). With --ray engines are processes of their own.
"""

from collections.abc import Sequence
import dataclasses
import functools
import pathlib
import sys

from kaiju_jax.app import settings as settings_lib
from kaiju_jax.app import tokens as tokens_lib
from kaiju_jax.runs import command
from kaiju_jax.runs import flags


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
  # Serve a small model that is downloaded once, or one trained in --model.
  chat: bool = False
  # With --chat: serve the trained one, also where the other is in reach.
  train: bool = False
  server: settings_lib.Settings
  tokens: tokens_lib.TokenChange


FLAGS = flags.flags_of(Settings)


def main(argv: Sequence[str]) -> None:
  settings = FLAGS.read(argv)
  server = settings.server
  if settings.tokens.is_wanted:
    settings.tokens.apply(pathlib.Path(server.folder))
    return
  flags.need(model=server.model)
  say = functools.partial(print, flush=True)
  trains = settings.chat
  if settings.chat and not settings.train:
    from kaiju_jax.app import download

    if model := download.try_fetch(say):
      server, trains = dataclasses.replace(server, model=str(model)), False
  say('Starting: importing jax takes some seconds.')
  from kaiju_jax.app import serve
  from kaiju_jax.app import serve_ray
  from kaiju_jax.decoding.device import memory
  from kaiju_jax.serving.http import log
  from kaiju_jax.serving.http import server as server_lib

  server_lib.check_free(server.host, server.port)  # Not after minutes.
  if server.ray:
    serve_ray.check(server)
  if trains:
    from kaiju_jax.app import chat
    from kaiju_jax.experiments.configs import chat as config

    experiment = config.get_config(root=server.model)
    if not chat.ready(experiment, server.model, say, server.tensor):
      return
  accepted = command.COMMON.read().accept_field
  if server.ray:
    serve_ray.run(server, accepted, say)
    return
  context = serve.assemble(serve.load_model(server, accepted), server, say)
  memory.trim()
  with log.write_to(sys.stderr, server.log):
    serve.run(context, server, say)


if __name__ == '__main__':
  command.run(main, LookupError, RuntimeError, ImportError)
