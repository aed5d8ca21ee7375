"""A stranger's data-parallel loop, as it stands, anywhere."""

import os
import pathlib
import re
import subprocess
import sys

LOOP = """
import os

os.environ['XLA_FLAGS'] = '--xla_force_host_platform_device_count=8'
import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P
import optax

from kaiju_jax.sharding import squinch

mesh = jax.make_mesh((8,), ('data',), axis_types=(jax.sharding.AxisType.Auto,))
optimizer = optax.chain(squinch.transform('data'), optax.adam(1e-2))


def loss_of(params, x, y):
  return jnp.mean((jax.nn.relu(x @ params['w_in']) @ params['w_out'] - y) ** 2)


def step(params, state, x, y):
  loss, gradient = jax.value_and_grad(loss_of)(params, x, y)
  updates, state = optimizer.update(gradient, state)  # 6 bits on the wire
  params = optax.apply_updates(params, updates)
  return params, state, jax.lax.pmean(loss, 'data')


rows = P('data')
step = jax.jit(jax.shard_map(
  step, mesh=mesh, in_specs=(P(), P(), rows, rows), out_specs=P(),
  check_vma=False))
keys = jax.random.split(jax.random.key(0), 3)
w_in = jax.random.normal(keys[0], (16, 64)) / 4
params = {'w_in': w_in, 'w_out': jnp.zeros(64)}
state = optimizer.init(params)
x = jax.random.normal(keys[1], (1024, 16))
y = jnp.sin(x @ jax.random.normal(keys[2], (16,)))
for i in range(101):
  params, state, loss = step(params, state, x, y)
  if i % 50 == 0:
    print(f'step {i}: loss {loss:.4f}')
"""


def test_the_loss_of_a_strangers_loop_falls(tmp_path):
  root = str(pathlib.Path(__file__).parents[2])
  done = subprocess.run(
    [sys.executable, '-c', LOOP],
    capture_output=True,
    text=True,
    timeout=120,
    cwd=tmp_path,
    env=os.environ | {'PYTHONPATH': root},
  )
  assert done.returncode == 0, done.stderr
  losses = [float(loss) for loss in re.findall(r'loss ([\d.]+)', done.stdout)]
  assert len(losses) == 3
  assert losses[-1] < losses[1] < 0.8 * losses[0], losses
