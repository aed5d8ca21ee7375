"""How much faster is a step on a tree of replies than on a row per reply?

    python -m experiments.benchmarks.choices [--prefix=800] [--replies=4x100]

Computes the replies' log-probabilities and their gradient in a small int8
model: once with all replies below one prefix, in one row, and once with a row
per reply. It prints the tokens of both and the ratio of processor time, the
median of rounds side by side. The ratio to reach is 2.2 for the default sizes.
"""

from collections.abc import Sequence
import time

from absl import flags

from kaiju_jax.model import config as model_config
from kaiju_jax.runs import command

_PREFIX = flags.DEFINE_integer('prefix', 800, 'Tokens.', lower_bound=1)
_REPLIES = flags.DEFINE_string('replies', '4x100', 'Number × tokens of each.')
_WIDTH = flags.DEFINE_integer('d_model', 64, 'D, in steps of 32.', 32)
_ROUNDS = flags.DEFINE_integer('rounds', 3, 'Timed rounds.', lower_bound=1)


def main(argv: Sequence[str]) -> None:
  command.check(argv)
  count, _, size = _REPLIES.value.partition('x')
  if not (count.isdecimal() and size.isdecimal() and int(count) and int(size)):
    raise ValueError(f'--replies={_REPLIES.value}: must be as in 4x100.')
  if _WIDTH.value % 32:
    raise ValueError(
      f'--d_model={_WIDTH.value}: must be a multiple of 32, the head size.'
    )
  _measure(_PREFIX.value, int(count), int(size))


def _rows(prefix: int, count: int, size: int):
  """Returns one tree row as a batch, and a row per reply as another."""
  import numpy as np

  from kaiju_jax.data import choices
  from kaiju_jax.data import packing

  rng = np.random.default_rng(0)
  head_L = rng.integers(1, 256, prefix)
  replies = rng.integers(1, 256, (count, size))
  parents = np.arange(-1, prefix + count * size - 1)
  parents[prefix::size] = prefix - 1
  tree = np.concatenate([head_L, replies.ravel()]), parents
  numbers = [np.zeros(prefix), np.repeat(np.arange(1, count + 1), size)]
  parts = [(*tree, np.concatenate(numbers))]
  one = np.concatenate([np.zeros(prefix), np.ones(size)])
  parts += [(np.concatenate([head_L, own]), None, one) for own in replies]
  rows = []
  for tokens, above, reply_L in parts:
    row = packing.row([packing.Piece(tokens, above)], len(tokens))
    extras = {choices.REPLY: reply_L.astype(np.int32)}
    rows.append(row._replace(extras=extras))
  return packing.stack(rows[:1]), packing.stack(rows[1:])


def _measure(prefix: int, count: int, size: int) -> None:
  import jax
  import jax.numpy as jnp
  import numpy as np

  from kaiju_jax.model import transformer
  from kaiju_jax.objectives import objective
  from kaiju_jax.objectives import preference
  from kaiju_jax.training import state

  model = transformer.Transformer(
    model_config.ModelConfig(
      vocab_size=256, d_model=_WIDTH.value, layout='L0 G1', window=256,
      num_heads=_WIDTH.value // 32, head_dim=32, d_ff=4 * _WIDTH.value,
      max_length=prefix + count * size, dtype='float32',
    )
  )  # fmt: skip
  params = state.init_params(model, 0)

  @jax.jit
  def gradient(params, batch):
    def loss(params):
      found_BY = preference.log_probabilities(
        model, {'params': params}, batch, objective.ZReg(0.0, 0.0)
      )
      return jnp.sum(found_BY)

    return jax.grad(loss)(params)

  batches = _rows(prefix, count, size)
  for one in batches:
    jax.block_until_ready(gradient(params, one))
  ratios = []
  for _ in range(_ROUNDS.value):
    seconds = []
    for one in batches:
      begin = time.process_time()
      jax.block_until_ready(gradient(params, one))
      seconds.append(time.process_time() - begin)
    ratios.append(seconds[1] / seconds[0])
  tree, lone = (one.tokens_BL.size for one in batches)
  print(
    f'{tree:,} tokens in a tree, {lone:,} in rows of their own: processor time'
    f' ÷ {np.median(ratios):.2f} (rounds:'
    f' {", ".join(f"{one:.2f}" for one in ratios)}).'
  )


if __name__ == '__main__':
  command.run(main)
