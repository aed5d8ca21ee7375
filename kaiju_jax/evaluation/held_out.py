"""What a run reads on unseen text: loss, bits per byte, sizes of logits."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from kaiju_jax.data import loader
from kaiju_jax.data import text
from kaiju_jax.evaluation import on_devices
from kaiju_jax.evaluation import perplexity
from kaiju_jax.model import transformer
from kaiju_jax.objectives import language
from kaiju_jax.sharding import collectives
from kaiju_jax.sharding import mesh as mesh_lib
from kaiju_jax.sharding import rules
from kaiju_jax.wire import ternary
from kaiju_jax.wire import ternary_plan

# Held-out rows are drawn once: they are the same for every run of a corpus.
_ORDER = 0


class _Some:
  """The first `count` rows of a source."""

  def __init__(self, source: text.Rows, count: int):
    self._source = source
    self._count = min(count, len(source))

  def __len__(self) -> int:
    return self._count

  def __getitem__(self, index: int):
    return self._source[index]

  def byte_count(self) -> int:
    """Bytes of text behind those tokens of the rows that carry loss."""
    return sum(map(self._source.byte_count, range(self._count)))


def evaluator(
  model: transformer.Transformer,
  corpus: text.Corpus,
  length: int,
  batch: int,
  rows: int,
  mesh: jax.sharding.Mesh | None = None,
) -> Callable[..., dict[str, float]]:
  """Returns (params, replica=None) → readings on rows of held-out text.

  Args:
    model: the transformer.
    corpus: held-out documents, measured.
    length: L of the rows.
    batch: B.
    rows: how many rows are read, drawn once from the whole corpus.
    mesh: the one that the parameters are stored over; by default the first
      device.

  The readings are `loss` (nats per token), `bits_per_byte`, and two root mean
  squares over layers, heads and tokens of the first batch: `rms_lse`, of the
  attention's log-sum-exp, and `rms_mean_logit`, of its mean logit. Where
  updates are ternary, the model reads the training state's replica, as training
  does.
  """
  source = _Some(text.Rows(corpus, length, seed=_ORDER), rows)
  byte_count = source.byte_count()

  mesh = mesh or mesh_lib.single()

  @on_devices.each(mesh)
  def summed(params, held, rows_BL):
    value = language.weighted_cross_entropy(
      model, params, rows_BL, 0.0, 0.0, held
    )
    weight = jnp.sum(rows_BL.weight_BL)
    return [collectives.total(x, 'B', rules.ROWS) for x in (value, weight)]

  @on_devices.each(mesh)
  def readings(params, held, rows_BL):
    _, left = model.apply(
      {'params': params, **held},
      rows_BL.tokens_BL,
      rows_BL.visibility(),
      method='hidden',
      mutable=['readings'],
    )
    return left['readings']

  def evaluate(
    params: Any, replica: ternary.State | None = None
  ) -> dict[str, float]:
    held = ternary_plan.collections(replica)
    batches = list(loader.epoch(source, batch))
    sums = np.sum(
      [jax.device_get(summed(params, held, b)) for b in batches], axis=0
    )
    nats, tokens = float(sums[0] / sums[1]), float(sums[1])
    return {
      'loss': nats,
      'bits_per_byte': perplexity.bits_per_byte(nats, byte_count / tokens),
      **_root_mean_squares(jax.device_get(readings(params, held, batches[0]))),
    }

  return evaluate


def _root_mean_squares(readings) -> dict[str, float]:
  """Pools each named reading over the layers that made one."""
  pooled = {}
  for path, value in jax.tree_util.tree_leaves_with_path(readings):
    name = next(k.key for k in reversed(path) if hasattr(k, 'key'))
    pooled.setdefault(name, []).append(np.square(value).ravel())
  return {
    name: float(np.sqrt(np.mean(np.concatenate(values))))
    for name, values in pooled.items()
  }
