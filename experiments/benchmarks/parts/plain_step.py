"""Does our notation cost anything, and what do windows save a training step?

    python -m experiments.benchmarks.step [--table=short --table=memory]

Whole optimizer steps in float32, ours against
`parts/plain_model.py` (nn.Dense, dense masks), side by side
in one process:

    short    the tiny configuration
    long     one row of 8,192, window 256, 6:1, per-layer remat on both sides;
             a dense step took a minute on 4 cores, and each round has two
    memory   temporary bytes of both compiled steps, to length 32,768

Both are compiled with XLA's memory-minded scheduler: the CPU's usual one
recomputes several layers at once, and asks 23 GiB for the dense step at 8,192.
"""

from collections.abc import Sequence
import dataclasses
import os

from absl import flags

from kaiju_jax.experiments.benchmarks.parts import timed_step
from kaiju_jax.reporting import report
from kaiju_jax.runs import command

_TABLE = flags.DEFINE_multi_enum(
  'table', ['short', 'long', 'memory'], ['short', 'long', 'memory'], 'Tables.'
)
_REPEATS = flags.DEFINE_integer(
  'repeats', 9, 'Rounds, each timing every contender once.', lower_bound=1
)
_STEPS = flags.DEFINE_integer('steps', 5, 'Steps per timing.', lower_bound=1)
_LENGTHS = flags.DEFINE_multi_integer(
  'lengths',
  [1024, 2048, 4096, 8192, 16384, 32768],
  'Row lengths of the memory table.',
)
_SCHEDULER = '--xla_cpu_enable_concurrency_optimized_scheduler=false'


def main(argv: Sequence[str]) -> None:
  command.check(argv)
  os.environ['XLA_FLAGS'] = f'{os.environ.get("XLA_FLAGS", "")} {_SCHEDULER}'
  if 'short' in _TABLE.value:
    report.Report().add(
      _times('the tiny configuration', _short(), _STEPS.value)
    ).show()
  if 'long' in _TABLE.value:
    report.Report().add(
      _times('6:1 at length 8,192, window 256', _long(8192), 1)
    ).show()
  if 'memory' in _TABLE.value:
    report.Report().add(_memory(_LENGTHS.value)).show()


def _short():
  from ..configs import tiny

  return tiny.get_config('f32')


def _long(length: int):
  from ..configs import tiny

  experiment = tiny.get_config('f32')
  experiment.model = dataclasses.replace(
    experiment.model,
    num_layers=7,
    window=256,
    max_length=length,
    remat='layer',
  )
  experiment.data.batch, experiment.data.length = 1, length
  return experiment


def _plain(experiment):
  import jax
  import jax.numpy as jnp
  import optax

  from kaiju_jax.experiments.benchmarks.parts import plain_model

  config = experiment.optimizer
  model = plain_model.Model(experiment.model)
  some = timed_step.batch(experiment)
  arguments = some.tokens_BL[0], some.source_BL[0], some.position_BL[0]
  params = jax.jit(model.init)(jax.random.key(0), *arguments)
  optimizer = optax.chain(
    optax.clip_by_global_norm(config.clip),
    optax.adamw(config.learning_rate, config.b1, config.b2),
  )

  def loss(params, batch):
    logits = model.apply(
      params, batch.tokens_BL[0], batch.source_BL[0], batch.position_BL[0]
    )
    nats = optax.softmax_cross_entropy_with_integer_labels(
      logits[:, :-1], batch.tokens_BL[0, :, 1:]
    )
    weight = batch.weight_BL[0, :, 1:]
    return jnp.sum(weight * nats) / jnp.sum(weight)

  def step(state, batch):
    params, opt_state = state
    value, gradient = jax.value_and_grad(loss)(params, batch)
    updates, opt_state = optimizer.update(gradient, opt_state, params)
    return (optax.apply_updates(params, updates), opt_state), value

  step = jax.jit(step, donate_argnums=0)
  return step, (params, optimizer.init(params))


_CONTENDERS = {'ours': timed_step.ours, 'plain': _plain}


def _times(title: str, experiment, steps: int):
  from kaiju_jax.kernels import timing

  batch = timed_step.batch(experiment)
  tokens = steps * batch.tokens_BL.size

  seconds = timing.medians(
    {
      name: timed_step.runner(*make(experiment), batch, steps)
      for name, make in _CONTENDERS.items()
    },
    _REPEATS.value,
  )
  ratio = seconds['plain'] / seconds['ours']
  rates = [f'{tokens / seconds[name]:,.0f}' for name in _CONTENDERS]
  return report.Table(
    [('tokens/s', *rates, f'{ratio:.2f}×')],
    ('', *_CONTENDERS, 'ours / plain'),
    f'Training step, {title}: medians of {_REPEATS.value} rounds',
  )


def _memory(lengths: Sequence[int]):
  rows = []
  for length in sorted(lengths):
    experiment = _long(length)
    batch = timed_step.batch(experiment)
    row = []
    for make in _CONTENDERS.values():
      step, state = make(experiment)
      analysis = step.lower(state, batch).compile().memory_analysis()
      row.append(f'{analysis.temp_size_in_bytes / 2**20:,.0f}')
    rows.append((f'{length:,}', *row))
  return report.Table(
    rows,
    ('length', *_CONTENDERS),
    'Temporary memory of the compiled step, MiB: 6:1, window 256',
  )


if __name__ == '__main__':
  command.run(main)
