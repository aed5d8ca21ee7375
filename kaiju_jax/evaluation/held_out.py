"""Evaluates a run on unseen text: loss, bits per byte, sizes of logits."""

from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from kaiju_jax.data import loader
from kaiju_jax.data import packing
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

# The seed of held-out rows, which are the same for every run on a corpus.
_ORDER = 0


class _Some:
  """The first `count` rows of a source."""

  def __init__(self, source: text.Rows, count: int):
    self._source = source
    self._count = min(count, len(source))

  def __len__(self) -> int:
    return self._count

  def __getitem__(self, index: int) -> packing.Row:
    return self._source[index]

  def byte_count(self) -> int:
    """Returns the bytes of text of the rows' tokens that carry loss."""
    return sum(map(self._source.byte_count, range(self._count)))


def evaluator(
  model: transformer.Transformer,
  corpus: text.Corpus,
  length: int,
  batch: int,
  rows: int,
  mesh: jax.sharding.Mesh | None = None,
  chunk: int = 0,
) -> Callable[..., dict[str, float]]:
  """Returns (params, replica=None) → readings on rows of held-out text.

  The readings are `loss` (nats per token), `bits_per_byte`, and two root mean
  squares over layers, heads and tokens of the first batch: `rms_lse`, of the
  attention's log-sum-exp, and `rms_mean_logit`, of its mean logit. Where
  updates are ternary, the model reads the training state's replica, as training
  does.

  Args:
    model: the transformer.
    corpus: held-out documents, measured.
    length: L of the rows.
    batch: B.
    rows: how many rows are read, drawn once from the whole corpus.
    mesh: where the parameters are stored; by default the first device.
    chunk: tokens whose logits are held at a time; 0 for all of a batch.
  """
  reader = _Reader(model, mesh or mesh_lib.single(), chunk)
  source = _Some(text.Rows(corpus, length, seed=_ORDER), rows)
  bytes_per_token = _bytes_per_token(source)

  def evaluate(
    params: Any, replica: ternary.State | None = None
  ) -> dict[str, float]:
    batches = list(loader.epoch(source, batch))
    nats = reader.nats(params, replica, batches)
    return {
      'loss': nats,
      'bits_per_byte': perplexity.bits_per_byte(nats, bytes_per_token),
      **reader.root_mean_squares(params, replica, batches[0]),
    }

  return evaluate


def sources_evaluator(
  model: transformer.Transformer,
  corpora: Mapping[str, text.Corpus],
  shares: Sequence[float],
  length: int,
  batch: int,
  rows: int,
  mesh: jax.sharding.Mesh | None = None,
  chunk: int = 0,
) -> Callable[..., dict[str, float]]:
  """Returns an `evaluator` of several sources, each of them read.

  Each source has the readings `loss/NAME` and `bits_per_byte/NAME`. The whole
  mix has `loss` and `bits_per_byte`, as if its tokens were mixed by `shares`.
  The two root mean squares are those of the first source's first batch.

  Args:
    model: the transformer.
    corpora: {name: held-out documents, measured}.
    shares: the sources' shares of the mix's tokens, which sum to 1.
    length: L of the rows.
    batch: B.
    rows: how many rows of each source are read.
    mesh: as for `evaluator`.
    chunk: as for `evaluator`.
  """
  reader = _Reader(model, mesh or mesh_lib.single(), chunk)
  sources = {
    name: _Some(text.Rows(corpus, length, seed=_ORDER), rows)
    for name, corpus in corpora.items()
  }
  bytes_per_token = {name: _bytes_per_token(s) for name, s in sources.items()}

  def evaluate(
    params: Any, replica: ternary.State | None = None
  ) -> dict[str, float]:
    nats, sizes = {}, {}
    for name, source in sources.items():
      batches = list(loader.epoch(source, batch))
      nats[name] = reader.nats(params, replica, batches)
      sizes = sizes or reader.root_mean_squares(params, replica, batches[0])
    loss, size = (
      float(np.dot(shares, list(values.values())))
      for values in (nats, bytes_per_token)
    )
    found = {
      'loss': loss,
      'bits_per_byte': perplexity.bits_per_byte(loss, size),
      **sizes,
    }
    for name, own in nats.items():
      found[f'loss/{name}'] = own
      found[f'bits_per_byte/{name}'] = perplexity.bits_per_byte(
        own, bytes_per_token[name]
      )
    return found

  return evaluate


def _bytes_per_token(source: _Some) -> float:
  """Returns the mean bytes of the rows' tokens that carry loss."""
  tokens = sum(float(source[n].weight.sum()) for n in range(len(source)))
  return source.byte_count() / tokens


class _Reader:
  """The evaluators' calls on devices, compiled once for all sources."""

  def __init__(
    self, model: transformer.Transformer, mesh: jax.sharding.Mesh, chunk: int
  ):
    @on_devices.each(mesh)
    def summed(params, held, rows_BL):
      value = language.weighted_cross_entropy(
        model, params, rows_BL, 0.0, 0.0, held, chunk
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

    self._summed = summed
    self._readings = readings

  def nats(self, params, replica, batches: Sequence[packing.Batch]) -> float:
    """Returns the mean cross-entropy of the batches' tokens."""
    held = ternary_plan.collections(replica)
    sums = np.sum(
      [jax.device_get(self._summed(params, held, b)) for b in batches], axis=0
    )
    return float(sums[0] / sums[1])

  def root_mean_squares(
    self, params, replica, batch: packing.Batch
  ) -> dict[str, float]:
    """Returns the pooled readings of one batch."""
    held = ternary_plan.collections(replica)
    return _root_mean_squares(
      jax.device_get(self._readings(params, held, batch))
    )


def _root_mean_squares(readings) -> dict[str, float]:
  """Returns each named reading, pooled over the layers that made one."""
  pooled = {}
  for path, value in jax.tree_util.tree_leaves_with_path(readings):
    name = next(k.key for k in reversed(path) if hasattr(k, 'key'))
    pooled.setdefault(name, []).append(np.square(value).ravel())
  return {
    name: float(np.sqrt(np.mean(np.concatenate(values))))
    for name, values in pooled.items()
  }
