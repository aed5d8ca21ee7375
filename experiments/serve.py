"""Serve a model: a page to chat with characters, and OpenAI's HTTP interface.

    make chat                                      # trains a small model first
    python -m experiments.serve --model=runs/tiny
    python -m experiments.serve --model=exported --port=0
    python -m experiments.serve --add_token=ann --token_age=adult
    python -m experiments.serve --model=runs/tiny --ray=auto --replicas=2

One process serves; characters and conversations lie in a sqlite file in
--folder. It answers this machine alone, and prints the address of its page,
with a key that clients send as api_key. With --open it asks for none, also of
other accounts and of what a proxy here passes on. With --require_token tokens
alone count. With --host it answers others too, who need a token each; that
takes a gate and a token-level head (--safety, --head).

With --ray the engines are processes of their own under Ray (docs/fleet.md).
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
  # Train a small chat model in --model first, if there is none.
  chat: bool = False
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
  say('Starting: importing jax takes some seconds.')
  from kaiju_jax.app import serve
  from kaiju_jax.app import serve_ray
  from kaiju_jax.decoding.device import memory
  from kaiju_jax.serving.http import log
  from kaiju_jax.serving.http import server as server_lib

  # Not after minutes of training.
  server_lib.check_free(server.host, server.port)
  if server.ray:
    serve_ray.check(server)
  if settings.chat:
    from kaiju_jax.app import chat

    from .configs import chat as config

    experiment = config.get_config(root=server.model)
    if chat.ready(experiment, server.model, say) is None:
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
