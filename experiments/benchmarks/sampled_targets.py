"""Which way of sampling a teacher's distributions is best, and is it right?

    python -m experiments.benchmarks.sampled_targets [--part=bias,error]

    bias   rms of z-scores of a student's gradient and loss (`estimators.py`):
           1 for what is right on average. The methods, each written as a
           store's records and read again, and five mutants that are wrong.
    error  squared error Σ (q̂ − p)², entries and bytes per token of each method,
           over distributions of a trigram of real text (`trigram.py`), as they
           are and sharpened; and the bytes of RS-KD with as many draws as
           `systematic`'s error at --draws asks for, in the same layout of the
           same store (`distillation/record.py`).

Both files are in `experiments/benchmarks/parts/`. Ten minutes on one core; a
minute with --draws_of_bias=500 --tokens=256.
"""

from collections.abc import Iterator
from collections.abc import Sequence
import dataclasses
import functools
import itertools
from typing import Any
from typing import NamedTuple

from absl import flags

from kaiju_jax.distillation import config as sampling_config
from kaiju_jax.runs import command
from kaiju_jax.runs import report

_PARTS = 'bias', 'error'
_PART = flags.DEFINE_list('part', list(_PARTS), 'What to measure.')
_DRAWS_OF_BIAS = flags.DEFINE_integer(
  'draws_of_bias', 4000, 'Draws behind each z-score.', lower_bound=100
)
_TOKENS = flags.DEFINE_integer(
  'tokens', 2048, 'Tokens whose errors are averaged.', lower_bound=64
)
_VOCAB = flags.DEFINE_integer(
  'vocab_size', 32_768, 'V of the trigram.', lower_bound=512
)
_DRAWS = flags.DEFINE_integer('draws', 50, 'N of the comparison.', 2)
_POWERS = flags.DEFINE_list(
  'powers', ['1', '1.3', '1.7'], 'How much the distributions are sharpened.'
)
_BLOCK = 64
Sampling = sampling_config.Sampling


def main(argv: Sequence[str]) -> None:
  command.check(argv)
  wanted = command.choose(_PART, _PARTS)
  powers = command.numbers(_POWERS, float, below=100)
  if 'bias' in wanted:
    report.show([_bias()])
  if 'error' in wanted:
    report.show(_errors(powers))


def _bias():
  import numpy as np

  from kaiju_jax.experiments.benchmarks.parts import estimators
  from kaiju_jax.training import progress

  tokens, vocab_size, block = estimators.TOKENS, 256, 200
  draws, slots, k = 24, 12, 4
  p_NV = estimators.teacher(tokens, vocab_size)
  rng = np.random.default_rng(1)
  student_NV = np.log(p_NV) + rng.normal(size=p_NV.shape)
  factors = estimators.functions(student_NV)
  firsts = range(0, _DRAWS_OF_BIAS.value, block)
  methods = {
    f'systematic, N {draws}': Sampling(draws=draws),
    f'systematic, N {draws}, T {slots}': Sampling(draws=draws, entries=slots),
    'gumbel, k 2': Sampling('gumbel', k=2),
    f'gumbel, k {k}': Sampling('gumbel', k=k),
    f'gumbel, k {2 * k}': Sampling('gumbel', k=2 * k),
    f'gumbel, κ −log {draws}, T {slots}': Sampling(
      'gumbel', draws=draws, entries=slots
    ),
    f'multinomial, N {draws}': Sampling('multinomial', draws=draws),
  }
  made = {
    name: functools.partial(_estimated, p_NV, sampling)
    for name, sampling in methods.items()
  } | estimators.mutants(p_NV, draws, slots, k)
  rows = []
  for name, estimate in made.items():
    blocks = (estimate(block, n) for n in progress.track(firsts, name))
    found = estimators.rms_z(blocks, p_NV, factors)
    rows.append((name, *(f'{value:.2f}' for value in found.values())))
  return report.table(
    ('', *factors),
    rows,
    f'rms z over {tokens} tokens, {len(firsts) * block:,} draws,'
    f' V {vocab_size:,}',
  )


def _estimated(p_NV, sampling: Sampling, block: int, first: int):
  from kaiju_jax.experiments.benchmarks.parts import estimators

  return estimators.estimates(p_NV, sampling, block, first)[0]


class _Measured(NamedTuple):
  """Means over tokens."""

  error: float
  entries: float
  raw: float
  packed: float


def _errors(powers: Sequence[float]) -> Iterator[Any]:
  import numpy as np

  from kaiju_jax.experiments.benchmarks.parts import trigram
  from kaiju_jax.training import progress

  teacher, histories_N2 = trigram.of_library(_VOCAB.value, _TOKENS.value)
  draws = _DRAWS.value
  methods = _methods(draws)
  count = -(-_TOKENS.value // _BLOCK)
  for power in powers:

    def over(of, power=power):
      blocks = trigram.blocks(teacher, histories_N2, _BLOCK, power)
      return [of(p_NV) for p_NV in progress.track(blocks, 'blocks', count)]

    entropy, spread = np.mean(np.concatenate(over(_shape), axis=1), axis=1)
    columns = _measured(over, methods)
    # Independent points err by (1 − Σ p²) / N.
    ours = f'systematic, N {draws}'
    equal = max(2, round(spread / columns[ours].error))
    name = f'multinomial, N {equal}'
    columns |= _measured(
      over, {name: Sampling('multinomial', draws=equal, entries=equal)}
    )
    yield _table(power, entropy, columns, ours, name)


def _methods(draws: int) -> dict[str, Sampling]:
  few, k = draws // 2, max(2, draws // 4)
  return {
    f'systematic, N {draws}': Sampling(draws=draws, entries=draws),
    f'systematic, N {few}': Sampling(draws=few, entries=draws),
    f'gumbel, κ −log {draws}': Sampling(
      'gumbel', draws=draws, entries=2 * draws
    ),
    f'gumbel, k {k}': Sampling('gumbel', k=k, entries=draws),
    f'multinomial, N {draws}': Sampling(
      'multinomial', draws=draws, entries=draws
    ),
    f'top_k, k {k}': Sampling('top_k', k=k, entries=draws),
  }


def _shape(p_NV):
  """Returns each token's entropy, and its 1 − Σ p²: [2, N]."""
  import numpy as np

  entropy_N = -(p_NV * np.log(np.maximum(p_NV, 1e-300))).sum(axis=1)
  return np.stack([entropy_N, 1 - np.square(p_NV).sum(axis=1)])


def _measured(over, methods: dict[str, Sampling]) -> dict[str, _Measured]:
  """Returns each method's figures; `over` maps a function over blocks of p."""
  import numpy as np

  from kaiju_jax.distillation import record

  found = {}
  for name, sampling in methods.items():
    firsts = itertools.count(0, _BLOCK)
    parts = over(functools.partial(_drawn, sampling, firsts))
    ids_NT, values_NT, weights_NT, error_N = map(np.concatenate, zip(*parts))
    # One byte per number for all of them.
    form = dataclasses.replace(
      record.form_of(sampling, _VOCAB.value), entries=255, largest=255
    )
    raw, packed = record.bytes_per_token(
      record.Targets(ids_NT, weights_NT), form
    )
    found[name] = _Measured(
      float(error_N.mean()),
      float((values_NT > 0).sum(axis=1).mean()),
      raw,
      packed,
    )
  return found


def _drawn(sampling: Sampling, firsts: Iterator[int], p_NV):
  """Returns ids, values, what a store keeps, and squared errors, per token."""
  import jax
  import jax.numpy as jnp
  import numpy as np

  from kaiju_jax.distillation import sample

  number_1N = next(firsts) + np.arange(len(p_NV), dtype=np.uint32)[None]
  logits_1NV = jnp.log(jnp.asarray(p_NV, jnp.float32))[None]
  draw = jax.jit(sample.draw, static_argnames='sampling')
  found = jax.tree.map(
    lambda x: np.asarray(x)[0], draw(logits_1NV, number_1N, sampling)
  )
  values_NT = found.values_BLT.astype(np.float64)
  own_NT = np.take_along_axis(p_NV, found.ids_BLT, axis=1)
  cross_N = (values_NT * (values_NT - 2 * own_NT)).sum(axis=1)
  error_N = cross_N + np.square(p_NV).sum(axis=1)
  weights_NT = values_NT
  if found.counts_BLT is not None:
    weights_NT = np.minimum(found.counts_BLT, 255)
  return found.ids_BLT, values_NT, weights_NT, error_N


def _table(power, entropy, columns, ours: str, equal: str):
  table = report.table(
    ('', 'squared error', 'entries', 'bytes', 'bytes, zstd'),
    [
      (
        name,
        f'{found.error:.2e}',
        f'{found.entries:.1f}',
        f'{found.raw:.1f}',
        f'{found.packed:.1f}',
      )
      for name, found in columns.items()
    ],
    f'Trigram, p^{power:g}: entropy {entropy:.2f} nats,'
    f' {_TOKENS.value:,} tokens, V {_VOCAB.value:,}',
  )
  raw, packed = (
    getattr(columns[ours], name) / getattr(columns[equal], name)
    for name in ('raw', 'packed')
  )
  table.caption = f'{ours} / {equal}: bytes {raw:.2f}, zstd {packed:.2f}'
  return table


if __name__ == '__main__':
  command.run(main)
