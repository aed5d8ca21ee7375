r"""Which settings does each peer serve fastest with, on this machine?

    taskset -c 0,1 python -m experiments.benchmarks.serving_peers
        [--in_flight=8] [--prompt=256] [--answer=32] [--turns=3]
        [--only=REGEX] [--json=PATH]

A bench that compares with a peer must compare with the peer at its best. Each
setting serves the same requests, all at second 0, as many as are in flight, of
the model in `peer_model.py`. The settings take turns; each is given by its best
turn, because machines are shared and what disturbs only adds.

The peers are `transformers`, of the extra `interchange`, and llama.cpp, which
stands in no extra: `pip install llama-cpp-python gguf` compiles it. What is not
installed is said and left out.
"""

from collections.abc import Callable
from collections.abc import Sequence
import functools
import math
import os
import pathlib
import re
import tempfile

from absl import flags

from kaiju_jax.runs import command

_IN_FLIGHT = flags.DEFINE_integer('in_flight', 8, 'Requests at a time.', 1)
_PROMPT = flags.DEFINE_integer('prompt', 256, 'Tokens of a prompt.', 1)
_ANSWER = flags.DEFINE_integer('answer', 32, 'Tokens of an answer.', 2)
_TURNS = flags.DEFINE_integer('turns', 3, 'How often each serves.', 1)
_ONLY = flags.DEFINE_string(
  'only', '', 'A regular expression: settings with it in their name.'
)
_JSON = flags.DEFINE_string('json', None, 'Where the figures go as JSON.')

# What differs from the defaults of `serve` in `transformers_serving`.
TRANSFORMERS = {
  'defaults': {},
  'repeated heads': {'grouped': False},
  'nothing shared': {'reuse': False},
  'pages of 16': {'page': 16},
  'pages of 256': {'page': 256},
  'chunks of 64': {'chunk': 64},
  'chunks of 1,024': {'chunk': 1024},
  'eager attention': {'attention': 'paged|eager'},
  'one thread': {'threads': 1},
}
# And in `llama_serving`; the name begins with the dtype.
LLAMA = {
  'float32': {},
  'float32, float32 cache': {'cache': 'float32'},
  'float32, chunks of 64': {'chunk': 64},
  'float16': {},
  'bfloat16': {},
  'int8': {},
}


def main(argv: Sequence[str]) -> None:
  command.check(argv)
  # Threads of torch that wait by spinning slow each other down where others
  # are at work; it is read when torch is imported.
  os.environ.setdefault('OMP_WAIT_POLICY', 'passive')
  with tempfile.TemporaryDirectory() as folder:
    _run(_contenders(_written(pathlib.Path(folder) / 'model')))


def _written(folder: pathlib.Path) -> pathlib.Path:
  from kaiju_jax.interchange import hugging_face
  from kaiju_jax.model import transformer
  from kaiju_jax.training import state

  from . import peer_model

  config = peer_model.config()
  params = state.init_params(transformer.Transformer(config), 0)
  hugging_face.write(folder, params, config)
  return folder


def _contenders(folder: pathlib.Path) -> dict[str, Callable]:
  """Returns what serves, by name: arrivals → timelines."""
  found = {}
  for peer in _transformers, _llama:
    try:
      found |= peer(folder)
    except ImportError as error:
      print(f'{peer.__name__.strip("_")} is left out: {error}.')
  chosen = {
    name: x for name, x in found.items() if re.search(_ONLY.value, name)
  }
  if not chosen:
    raise SystemExit(f'error: --only={_ONLY.value}: is in no name.')
  return chosen


def _transformers(folder: pathlib.Path) -> dict[str, Callable]:
  from . import transformers_serving

  @functools.cache
  def model(dtype, attention):
    return transformers_serving.model(folder, dtype=dtype, attention=attention)

  def serve(arrivals, dtype, attention='sdpa', threads=None, **changes):
    loaded = model(dtype, attention)
    transformers_serving.use_threads(threads)
    return transformers_serving.serve(
      loaded, arrivals, in_flight=_IN_FLIGHT.value, **changes
    )

  return {
    f'transformers, {dtype}, {name}': functools.partial(
      serve, dtype=dtype, **changes
    )
    for dtype in ('float32', 'bfloat16')
    for name, changes in TRANSFORMERS.items()
  }


def _llama(folder: pathlib.Path) -> dict[str, Callable]:
  from . import llama_serving

  @functools.cache
  def path(dtype):
    written = folder / f'{dtype}.gguf'
    llama_serving.write(written, folder, dtype)
    return written

  def serve(arrivals, dtype, **changes):
    return llama_serving.serve(
      path(dtype), arrivals, in_flight=_IN_FLIGHT.value, **changes
    )

  return {
    f'llama.cpp, {name}': functools.partial(
      serve, dtype=name.partition(',')[0], **changes
    )
    for name, changes in LLAMA.items()
  }


def _run(contenders: dict[str, Callable]) -> None:
  import rich.console

  from kaiju_jax.storage import files

  from . import load
  from . import serving_parts

  count = _IN_FLIGHT.value
  arrivals = load.arrivals(
    load.Load(
      rate=math.inf,
      count=count,
      prompt=(_PROMPT.value, _PROMPT.value),
      answer=(_ANSWER.value, _ANSWER.value),
    )
  )
  console = rich.console.Console()
  found = serving_parts.run_contenders(
    contenders, arrivals, _TURNS.value, console.print
  )
  title = (
    f'{_IN_FLIGHT.value} in flight, {_PROMPT.value} + {_ANSWER.value} tokens;'
    f' the best of {_TURNS.value} turns'
  )
  console.print(serving_parts.table(title, serving_parts.best_of(found)))
  if _JSON.value:
    plain = {
      name: [x._asdict() for x in turns] for name, turns in found.items()
    }
    files.write_json(pathlib.Path(_JSON.value), plain)


if __name__ == '__main__':
  command.run(main)
