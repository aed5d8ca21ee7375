r"""How fast does the engine serve, and how does it behave under overload?

    taskset -c 0,1 python -m experiments.bench_serve
        [--parts=reuse,between,overload,curve]
        [--turns=2] [--json=PATH] [--figure=PATH]
    taskset -c 0,1 python -m experiments.bench_serve --http
    taskset -c 0 python -m experiments.bench_serve --host --rows=32

The model is that of `benchmarks.decode`, 96.6 M parameters in the shape of
Arcee, so that peers serve equal weights: transformers' continuous
batching (extra `interchange`), and llama.cpp where it is installed (`pip
install llama-cpp-python gguf`). What is not installed is said and left out.

`load_test/serving_parts.py` says what each part measures;
`curve` serves the same Poisson load at several rates and draws the latency of
the first token, ours and theirs. Compilations after the warm-up are counted;
the target is none.

--http serves the same load over HTTP instead, beside the engine without it, and
says what conversations reuse. --host prints the processor time of a round on
the host alone, with --rows rows, and while 22 prompts of 32k tokens wait.
"""

from collections.abc import Sequence
import os
import pathlib
import tempfile

from absl import flags

from kaiju_jax.runs import command

PARTS = 'reuse', 'between', 'overload', 'curve'
PEERS = {
  'transformers': ('float32', 'bfloat16'),
  'llama.cpp': ('float32', 'int8'),
}
_PARTS = flags.DEFINE_list(
  'parts', list(PARTS), 'What is measured beside the throughput.'
)
_TURNS = flags.DEFINE_integer('turns', 2, 'How often contenders run.', 1)
_ROWS = flags.DEFINE_integer('rows', 8, 'Sequences in flight.', 1)
_COUNT = flags.DEFINE_integer('count', 24, 'Requests of a load.', 2)
_SECONDS = flags.DEFINE_float(
  'seconds', 30.0, 'How long a Poisson load lasts, about.', 1.0
)
_LAYERS = flags.DEFINE_integer('layers', 12, 'Layers of the model.', 1)
_PROMPT = flags.DEFINE_list('prompt', ['32', '256'], 'Fewest and most tokens.')
_ANSWER = flags.DEFINE_list('answer', ['32', '96'], 'Fewest and most tokens.')
_LONG = flags.DEFINE_integer('long', 2048, 'Tokens of long prompts.', 2)
_WAIT = flags.DEFINE_float('wait', 2.5, 'Seconds to a first token, at most.')
_HTTP = flags.DEFINE_bool(
  'http', False, 'Compare a server over HTTP with its engine, and no peers.'
)
_HOST = flags.DEFINE_bool(
  'host', False, 'Measure the host alone, over calls that take no time.'
)
_PEERS = flags.DEFINE_list(
  'peers',
  [f'{peer}:{dtype}' for peer, dtypes in PEERS.items() for dtype in dtypes],
  'Which peers run, and in which dtype.',
)
_JSON = flags.DEFINE_string('json', None, 'Where the figures go as JSON.')
_FIGURE = flags.DEFINE_string('figure', None, 'Where the figure goes (png).')


def main(argv: Sequence[str]) -> None:
  command.check(argv)
  command.choose(_PARTS, PARTS)
  if _PEERS.value:  # None at all is a choice, too.
    command.choose(_PEERS, _PEERS.default)
  if 'between' in _PARTS.value and _ROWS.value < 2:
    raise ValueError('--rows=1: the part between needs two.')
  # Before what a peer imports: its threads would spin.
  os.environ.setdefault('OMP_WAIT_POLICY', 'passive')
  from kaiju_jax.experiments.benchmarks.load_test import bench
  from kaiju_jax.storage import files

  settings = bench.Settings(
    parts=tuple(_PARTS.value),
    peers=tuple(_PEERS.value),
    turns=_TURNS.value,
    rows=_ROWS.value,
    count=_COUNT.value,
    seconds=_SECONDS.value,
    layers=_LAYERS.value,
    prompt=_pair(_PROMPT),
    answer=_pair(_ANSWER),
    long=_LONG.value,
    wait=_WAIT.value,
  )
  if _HOST.value:
    bench.measure_host(settings)
    return
  measure = bench.measure_over_http if _HTTP.value else bench.measure
  with tempfile.TemporaryDirectory() as folder:
    found = measure(pathlib.Path(folder), settings)
  if _JSON.value:
    files.write_json(pathlib.Path(_JSON.value), found)
  if _FIGURE.value and 'curve' in found:
    bench.draw(found['curve'], _FIGURE.value)


def _pair(flag) -> tuple[int, int]:
  found = command.numbers(flag, int)
  return found[0], found[-1]


if __name__ == '__main__':
  command.run(main)
