"""Tokens are counted exactly, however many there are and in whatever steps."""

import jax
from jax import lax
import jax.numpy as jnp
import numpy as np
import pytest

from kaiju_jax.training import token_count


@pytest.mark.parametrize(
  'step, steps', [(4_088, 40_000), (1_632, 10**6), (3 * 2**30 + 1, 1_000)]
)
def test_steps_of_any_size_add_up(step, steps):
  @jax.jit
  def counted():
    return lax.fori_loop(
      0,
      steps,
      lambda _, count: token_count.add(count, jnp.uint32(step)),
      token_count.start(),
    )

  assert token_count.to_int(counted()) == step * steps


@pytest.mark.parametrize('at', [0, 1, 2**24 + 1, 2**32 - 1, 2**32, 5 * 2**32])
def test_a_carry_is_kept(at):
  count = token_count.start(at)
  assert token_count.to_int(count) == at
  for more in (0, 1, 4_088, 2**32 - 1):
    after = token_count.add(count, jnp.uint32(more))
    assert token_count.to_int(after) == at + more
  np.testing.assert_allclose(
    token_count.to_float(count), np.float32(at), rtol=2**-23
  )


def test_what_float32_holds_is_what_schedules_see():
  for at in (0, 1, 2**24, 12_345_678, 2**40, 3 * 2**33):
    assert float(token_count.to_float(token_count.start(at))) == float(at)
