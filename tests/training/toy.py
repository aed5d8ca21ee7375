"""The smallest run that exercises the loop: a linear model under Adam.

As a script it trains once, for tests that kill it:

    python toy.py WORKDIR STEPS CHECKPOINT_EVERY WIDTH
"""

import sys

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
import optax

from kaiju_jax.training import experiment as experiment_lib
from kaiju_jax.training import loop

_BATCH = 4
_OPTIMIZER = optax.adamw(1e-2)


@flax.struct.dataclass
class State:
  step: jax.Array
  tokens: jax.Array
  params: dict
  opt_state: tuple


class Batches:
  """Batch i is a pure function of i, which is the whole position."""

  def __init__(self, width=8, end=None):
    self.index = 0
    self._width = width
    self._end = end

  def __iter__(self):
    return self

  def __next__(self):
    if self.index == self._end:
      raise StopIteration
    rng = np.random.default_rng(self.index)
    self.index += 1
    x_BD = rng.normal(size=(_BATCH, self._width)).astype(np.float32)
    return {'x_BD': x_BD, 'y_B': x_BD[:, 0] - 0.5 * x_BD[:, 1]}

  def get_state(self):
    return {'index': self.index}

  def set_state(self, state):
    self.index = state['index']


def initial(width=8):
  params = {'w_D': jnp.zeros(width), 'b': jnp.zeros(())}
  return State(
    step=jnp.int32(0),
    tokens=jnp.float32(0),
    params=params,
    opt_state=_OPTIMIZER.init(params),
  )


def loss(params, batch):
  y_B = batch['x_BD'] @ params['w_D'] + params['b']
  return jnp.mean((y_B - batch['y_B']) ** 2)


def make_step():
  """Returns a step of its own, so that tests count its compilations."""

  def step(state, batch):
    value, gradient = jax.value_and_grad(loss)(state.params, batch)
    updates, opt_state = _OPTIMIZER.update(
      gradient, state.opt_state, state.params
    )
    state = State(
      step=state.step + 1,
      tokens=state.tokens + _BATCH,
      params=optax.apply_updates(state.params, updates),
      opt_state=opt_state,
    )
    return state, {'loss': value, 'grad_norm': optax.global_norm(gradient)}

  return jax.jit(step, donate_argnums=0)


def evaluate(state):
  return {'norm': float(jnp.abs(state.params['w_D']).sum())}


def experiment(steps=12, **settings):
  made = experiment_lib.Experiment()
  made.loop.steps = steps
  made.loop.log_every = 1
  made.loop.evaluate_every = 5
  made.loop.checkpoint_every = 4
  for name, value in settings.items():
    setattr(made.loop, name, value)
  return made


def train(workdir, made=None, *, width=8, step=None, batches=None, **kwargs):
  return loop.train(
    made or experiment(),
    workdir,
    state=initial(width),
    step=step or make_step(),
    batches=batches or Batches(width),
    **{'evaluate': evaluate, **kwargs},
  )


if __name__ == '__main__':
  folder, steps, every, width = sys.argv[1], *map(int, sys.argv[2:])
  train(folder, experiment(steps, checkpoint_every=every), width=width)
