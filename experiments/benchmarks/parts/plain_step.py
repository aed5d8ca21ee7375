"""Training steps beside those of a plain model: seconds and memory."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import optax

from kaiju_jax.experiments.benchmarks.parts import plain_model
from kaiju_jax.experiments.benchmarks.parts import timed_step
from kaiju_jax.experiments.configs import tiny
from kaiju_jax.kernels import timing
from kaiju_jax.reporting import report


def _long(length: int):
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


def _times(title: str, experiment, steps: int, repeats: int):
  batch = timed_step.batch(experiment)
  runs = {
    name: timed_step.runner(*make(experiment), batch, steps)
    for name, make in _CONTENDERS.items()
  }
  seconds = timing.medians(runs, repeats)
  tokens = steps * batch.tokens_BL.size
  rates = (f'{tokens / seconds[name]:,.0f}' for name in _CONTENDERS)
  ratio = f'{seconds["plain"] / seconds["ours"]:.2f}×'
  return report.Table(
    [('tokens/s', *rates, ratio)],
    ('', *_CONTENDERS, 'ours / plain'),
    f'Training step, {title}: medians of {repeats} rounds',
  )


def short(settings: Any) -> report.Table:
  """Returns tokens per second of the tiny configuration."""
  experiment = tiny.get_config('f32')
  name = 'the tiny configuration'
  return _times(name, experiment, settings.steps, settings.repeats)


def long(settings: Any) -> report.Table:
  """Returns tokens per second of one long row."""
  name = '6:1 at length 8,192, window 256'
  return _times(name, _long(8192), 1, settings.repeats)


def memory(settings: Any) -> report.Table:
  """Returns temporary bytes of the compiled steps."""
  rows = []
  for length in settings.lengths:
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


TABLES = {'short': short, 'long': long, 'memory': memory}
