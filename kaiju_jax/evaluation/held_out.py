"""Evaluates a run on unseen text: loss, bits per byte, sizes of logits."""

from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from kaiju_jax.data import loader
from kaiju_jax.data import packing
from kaiju_jax.data import text
from kaiju_jax.evaluation import on_devices
from kaiju_jax.model import transformer
from kaiju_jax.objectives import language
from kaiju_jax.sharding import collectives
from kaiju_jax.sharding import mesh as mesh_lib
from kaiju_jax.sharding import rules
from kaiju_jax.wire import ternary
from kaiju_jax.wire import ternary_plan

# The seed of held-out rows, which are the same for every run on a corpus.
_ORDER = 0


class _FirstRows:
  """The first `count` rows of a source."""

  def __init__(self, source: text.Rows, count: int):
    self._source = source
    self._count = min(count, len(source))

  def __len__(self) -> int:
    return self._count

  def __getitem__(self, index: int) -> packing.Row:
    return self._source[index]

  def bytes_per_token(self) -> float:
    """Returns the mean bytes of the rows' tokens that carry loss."""
    sizes = map(self._source.byte_count, range(self._count))
    return sum(sizes) / sum(float(row.weight.sum()) for row in self)

  def __iter__(self):
    return map(self.__getitem__, range(self._count))


def bits_per_byte(nats_per_token: float, bytes_per_token: float) -> float:
  """Returns a loss in bits per byte, so that models of any tokenizer compare.

  Args:
    nats_per_token: mean cross-entropy of the tokens that carry loss.
    bytes_per_token: mean bytes of UTF-8 of the same tokens. BOS and the first
      token of a piece carry no loss and count for no bytes.
  """
  return nats_per_token / math.log(2) / bytes_per_token


def evaluator(
  model: transformer.Transformer,
  corpora: Mapping[str, text.Corpus],
  shares: Sequence[float],
  length: int,
  batch: int,
  rows: int,
  mesh: jax.sharding.Mesh | None = None,
  chunk: int = 0,
) -> Callable[..., dict[str, float]]:
  """Returns (params, replica=None) → readings on rows of held-out text.

  The readings are `loss` (nats per token), `bits_per_byte`, and two root mean
  squares over layers, heads and the tokens that carry loss: `rms_lse`, of the
  attention's log-sum-exp, and `rms_mean_logit`, of its mean logit. They are
  those of the mix of the corpora by `shares`; a corpus with a name has
  `loss/NAME` and `bits_per_byte/NAME` as well. `replica` is the training
  state's, where updates are ternary.

  Args:
    corpora: {name: held-out documents, measured}; '' names none.
    shares: the corpora's shares of the mix's tokens, which sum to 1.
    length: L of the rows.
    rows: how many rows of each corpus are read, drawn once from all of it.
    mesh: where the parameters are stored; by default the first device.
    chunk: tokens whose logits are held at a time; 0 for all of a batch.
  """
  reader = _Reader(model, mesh or mesh_lib.single(), chunk)
  sources = {
    name: _FirstRows(text.Rows(corpus, length, seed=_ORDER), rows)
    for name, corpus in corpora.items()
  }
  sizes = {name: one.bytes_per_token() for name, one in sources.items()}

  def evaluate(
    params: Any, replica: ternary.State | None = None
  ) -> dict[str, float]:
    means = {
      name: reader.read(params, replica, loader.epoch(source, batch))
      for name, source in sources.items()
    }
    mixed = {
      reading: float(np.dot(shares, [own[reading] for own in means.values()]))
      for reading in next(iter(means.values()))
    }
    size = float(np.dot(shares, list(sizes.values())))
    found = {name: float(np.sqrt(x)) for name, x in mixed.items()}
    found['loss'] = mixed['loss']
    found['bits_per_byte'] = bits_per_byte(mixed['loss'], size)
    for name, own in means.items():
      if name:
        found[f'loss/{name}'] = own['loss']
        bits = bits_per_byte(own['loss'], sizes[name])
        found[f'bits_per_byte/{name}'] = bits
    return found

  return evaluate


class _Reader:
  """The evaluators' call on devices, compiled once for all sources."""

  def __init__(
    self, model: transformer.Transformer, mesh: jax.sharding.Mesh, chunk: int
  ):
    @on_devices.each(mesh)
    def summed(params, held, rows_BL):
      variables = {'params': params, **held}
      hidden_BLD, left = model.apply(
        variables,
        rows_BL.tokens_BL,
        rows_BL.visibility(),
        method='hidden',
        mutable=['readings'],
      )
      loss_BL = language.hidden_cross_entropy(
        model, variables, hidden_BLD, rows_BL, 0.0, chunk
      )
      of_tokens = {
        'loss': loss_BL,
        **_mean_squares(left['readings']),
        'weight': jnp.ones_like(loss_BL),
      }
      return {
        name: collectives.total(
          jnp.sum(rows_BL.weight_BL * x_BL), 'B', rules.ROWS
        )
        for name, x_BL in of_tokens.items()
      }

    self._summed = summed

  def read(
    self, params, replica, batches: Iterable[packing.Batch]
  ) -> dict[str, float]:
    """Returns means over the batches' tokens: of the loss, and of squares."""
    held = ternary_plan.collections(replica)
    found = [jax.device_get(self._summed(params, held, b)) for b in batches]
    sums = {x: sum(float(one[x]) for one in found) for x in found[0]}
    weight = sums.pop('weight')
    return {name: one / weight for name, one in sums.items()}


def _mean_squares(readings) -> dict[str, jax.Array]:
  """Returns each reading [B, L], its mean over the layers that made one."""
  pooled = {}
  for path, x_BL in jax.tree_util.tree_leaves_with_path(readings):
    name = next(k.key for k in reversed(path) if hasattr(k, 'key'))
    # A scan of layers puts theirs in front.
    pooled.setdefault(name, []).append(x_BL.reshape(-1, *x_BL.shape[-2:]))
  return {
    f'rms_{name}': jnp.mean(jnp.concatenate(values), axis=0)
    for name, values in pooled.items()
  }
