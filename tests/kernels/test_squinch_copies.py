"""The codec in memory copies runs at toy size, and times what it says."""

import functools
import json
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from kaiju_jax.kernels.squinch import copies
from kaiju_jax.kernels.squinch import reference


def test_structs_hold_the_planes_bytes_together():
  x_RC = np.random.default_rng(0).standard_normal((16, 3)).astype(np.float32)
  encode, decode = copies._pair('structs', 'quarter', 'floor')
  packed = jax.jit(encode)(jnp.asarray(x_RC))
  code = functools.partial(jax.jit, static_argnums=(1, 2))
  planes = code(reference.encode)(jnp.asarray(x_RC), 'floor', 'quarter')
  assert packed.shape == (2, 3, 6)
  np.testing.assert_array_equal(packed[1, 2], planes[:, 1, 2])
  np.testing.assert_array_equal(
    jax.jit(decode)(packed),
    code(reference.decode)(planes, 'floor', 'quarter'),
  )


@pytest.mark.slow
def test_the_command_prints_and_writes_every_case(tmp_path):
  path = tmp_path / 'speed.json'
  command = (
    '-m kaiju_jax.kernels.squinch.copies'
    f' --rows=64 --columns=32 --repeats=1 --json={path}'
  )
  text = subprocess.run(
    [sys.executable, *command.split()],
    capture_output=True,
    text=True,
    check=True,
  ).stdout
  found = json.loads(path.read_text())
  assert found['threads'] == 1 and found['mebibytes'] == 64 * 32 * 4 / 2**20
  cases = 2 * len(reference.ELEMENTS) * len(reference.HEADERS)
  assert len(found['rows']) == cases and found['copy'] > 0
  for row in found['rows']:
    both = row['encode'] + row['decode']
    np.testing.assert_allclose(row['copies'], both / found['copy'])
    assert f'{row["layout"]:8} {row["header"]:8} {row["elements"]:8}' in text
