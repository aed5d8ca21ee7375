"""Does our mixture of sources cost time against Grain's own mixing?

    python -m experiments.benchmarks.mixture

Both draw rows of the same sources, which are packed from the text that the
running Python carries, batch them and read ahead in one thread: ours as
training does it, Grain's with its own `batch`. Ours draws each block's order
and keeps the shares to within one row; `grain.MapDataset.mix` goes through
fixed proportions. Every round times
both contenders, each in turn the first. The table gives medians over the
rounds, the medians of the rounds' ratios, by the clock and by the processor
time of all threads (which other work on the machine changes less), and the
largest error of a source's share of the rows.
"""

from collections.abc import Sequence
import statistics
import time

from absl import flags

from kaiju_jax.runs import command
from kaiju_jax.runs import report

_LENGTH = flags.DEFINE_integer(
  'length', 512, 'L, tokens per row.', lower_bound=2
)
_BATCH = flags.DEFINE_integer('batch', 32, 'B, rows per batch.', lower_bound=1)
_BATCHES = flags.DEFINE_integer(
  'batches', 192, 'Batches per timing.', lower_bound=1
)
_ROUNDS = flags.DEFINE_integer('rounds', 11, 'Timings of each.', lower_bound=1)
# The third is cut by proportions that are whole numbers.
_WEIGHTS = 0.5, 0.3951, 0.0549, 0.05
_ENDLESS = 2**40


def main(argv: Sequence[str]) -> None:
  command.check(argv)
  from kaiju_jax.training import progress

  parts = _parts()
  contenders = {'ours': _ours, 'grain': _grain}
  seconds = {name: [] for name in contenders}
  for number in progress.track(range(_ROUNDS.value), 'rounds'):
    order = list(contenders) if number % 2 else list(contenders)[::-1]
    for name in order:
      seconds[name].append(_timed(contenders[name](parts)))
  errors = {name: _error(make(parts)) for name, make in contenders.items()}
  report.show([_table(seconds, errors)])


def _parts():
  """Returns the sources: each a part of the documents."""
  from kaiju_jax.data import documents
  from kaiju_jax.data import mixture
  from kaiju_jax.data import text
  from kaiju_jax.data import tokenizer

  read = list(documents.read(''))
  parts = []
  for index, weight in enumerate(_WEIGHTS):
    own = text.corpus(read[index :: len(_WEIGHTS)], tokenizer.Bytes())
    rows = text.Rows(own, _LENGTH.value, seed=index)
    parts.append(mixture.Part(f'{index}', rows, weight, weight))
  return parts


def _ours(parts):
  from kaiju_jax.data import loader
  from kaiju_jax.data import mixture

  return loader.batches(mixture.Mixture(parts, _ENDLESS), _BATCH.value)


def _grain(parts):
  import grain

  from kaiju_jax.data import packing

  def numbered(part):
    # What tells the sources apart in the mix, as ours does it.
    def row(index):
      found = parts[part].rows[index]
      return found._replace(extras={packing.COMPONENT: part})

    return row

  datasets = [
    grain.MapDataset.range(_ENDLESS).map(numbered(part))
    for part in range(len(parts))
  ]

  def stack(rows):
    return packing.stack(rows).map(lambda x: x[None])

  mixed = grain.MapDataset.mix(datasets, [one.weight for one in parts])
  return iter(
    mixed.batch(_BATCH.value, batch_fn=stack).to_iter_dataset(
      grain.ReadOptions(num_threads=1, prefetch_buffer_size=2)
    )
  )


def _timed(batches) -> tuple[float, float]:
  """Returns the seconds and processor seconds that the batches take."""
  next(batches)
  begin = time.perf_counter(), time.process_time()
  for _ in range(_BATCHES.value):
    next(batches)
  end = time.perf_counter(), time.process_time()
  batches.close()
  return end[0] - begin[0], end[1] - begin[1]


def _error(batches) -> float:
  """Returns the largest relative error of a source's share of the rows."""
  import numpy as np

  from kaiju_jax.data import packing

  counts = np.zeros(len(_WEIGHTS))
  for _ in range(_BATCHES.value):
    components = next(batches).extras[packing.COMPONENT]
    counts += np.bincount(components.ravel(), minlength=len(counts))
  batches.close()
  return float(np.max(np.abs(counts / counts.sum() / _WEIGHTS - 1)))


def _table(seconds, errors):
  tokens = _BATCHES.value * _BATCH.value * _LENGTH.value
  rows = []
  for name, own in seconds.items():
    ratios = [
      [grain / mine for grain, mine in zip(*both)]
      for both in zip(seconds['grain'], own)
    ]
    rows.append(
      (
        name,
        f'{tokens / statistics.median(clock for clock, _ in own):,.0f}',
        *(f'{statistics.median(each):.3f}' for each in zip(*ratios)),
        f'{errors[name]:.2%}',
      )
    )
  return report.table(
    (
      *('mixture', 'tokens/s', 'of grain', 'of grain, processor'),
      'largest error of a share',
    ),
    rows,
    f'{len(_WEIGHTS)} sources, rows of {_LENGTH.value},'
    f' {_ROUNDS.value} rounds of {_BATCHES.value} batches of {_BATCH.value}',
  )


if __name__ == '__main__':
  command.run(main)
