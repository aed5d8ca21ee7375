"""What a training run says of unseen text: loss, bits per byte, logit sizes."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec
import numpy as np

from kaiju_jax.data import loader
from kaiju_jax.data import text
from kaiju_jax.evaluation import perplexity
from kaiju_jax.model import transformer
from kaiju_jax.sharding import collectives
from kaiju_jax.sharding import mesh as mesh_lib
from kaiju_jax.sharding import rules
from kaiju_jax.training import loss

# The held-out rows are drawn once, the same for every run of a corpus.
_ORDER = 0


class _Some:
  """The first `count` rows of a source."""

  def __init__(self, source: loader.RowSource, count: int):
    self._source = source
    self._count = min(count, len(source))

  def __len__(self) -> int:
    return self._count

  def __getitem__(self, index: int):
    return self._source[index]


def evaluator(
  model: transformer.Transformer,
  corpus: text.Corpus,
  length: int,
  batch: int,
  rows: int,
  mesh: jax.sharding.Mesh | None = None,
) -> Callable[[Any], dict[str, float]]:
  """Returns params → readings on `rows` rows of held-out text.

  Args:
    model: the transformer.
    corpus: held-out documents.
    length: L of the rows.
    batch: B.
    rows: how many, drawn once from the whole corpus.
    mesh: that the parameters are stored over; by default the first device.

  The function returns `loss` (nats a token), `bits_per_byte`, and the root
  mean square over layers, heads and tokens of the attention's log-sum-exp and
  mean logit, `rms_lse` and `rms_mean_logit`, on the first batch.
  """
  source = _Some(text.Rows(corpus, length, seed=_ORDER), rows)

  mesh = mesh or mesh_lib.single()

  @_on_each(mesh)
  def summed(params, rows_BL):
    value = loss.weighted_cross_entropy(model, params, rows_BL, 0.0, 0.0)
    weight = jnp.sum(rows_BL.weight_BL)
    return [collectives.total(x, 'B', rules.ROWS) for x in (value, weight)]

  @_on_each(mesh)
  def readings(params, rows_BL):
    _, left = model.apply(
      {'params': params},
      rows_BL.tokens_BL,
      rows_BL.visibility(),
      method='hidden',
      mutable=['readings'],
    )
    return left['readings']

  def evaluate(params) -> dict[str, float]:
    batches = list(loader.epoch(source, batch))
    sums = np.sum([jax.device_get(summed(params, b)) for b in batches], axis=0)
    nats = float(sums[0] / sums[1])
    return {
      'loss': nats,
      'bits_per_byte': perplexity.bits_per_byte(nats, corpus.bytes_per_token),
      **_root_mean_squares(jax.device_get(readings(params, batches[0]))),
    }

  return evaluate


def _on_each(mesh: jax.sharding.Mesh):
  """Runs (params, rows_BL) on each device's own rows; all return the same."""

  def decorate(function):
    def run(params, rows_BL):
      return jax.shard_map(
        function,
        mesh=mesh,
        in_specs=(rules.specs(params, mesh), PartitionSpec('fsdp')),
        out_specs=PartitionSpec(),
        check_vma=False,
      )(params, rows_BL)

    return jax.jit(run)

  return decorate


def _root_mean_squares(readings) -> dict[str, float]:
  """Pools each named reading over the layers that left one."""
  pooled = {}
  for path, value in jax.tree_util.tree_leaves_with_path(readings):
    name = next(k.key for k in reversed(path) if hasattr(k, 'key'))
    pooled.setdefault(name, []).append(np.square(value).ravel())
  return {
    name: float(np.sqrt(np.mean(np.concatenate(values))))
    for name, values in pooled.items()
  }
