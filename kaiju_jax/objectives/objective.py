"""The interface of an objective, the value that a training step minimizes.

    step.make(experiment, mesh, objective)

The step owns everything else: microbatches, the mesh, the optimizer, ternary
replicas, metrics. It minimizes

    Σ loss / Σ weight

where both sums run over the rows of all devices and microbatches. An objective
defines

    extras       the arrays that it reads beside the rows of a batch
    loss         the sums of one microbatch (`Sums`): its loss, the weight that
                 divides the loss, and metrics, each with its own divisor
    parameters   the parameters that it trains beside the model's
    trained      the parameters that get a gradient; the others are frozen

so that a new objective is one file. Supervised fine-tuning is the objective
`language`: the rows' weights are 0 outside the turns that the model should
learn.

A batch is rows and extras (`packing.Batch.extras`, a dictionary of arrays). A
row source returns a row's extras with the row, so that batching, placement on
a mesh and resuming need no code for a new objective.
"""

from collections.abc import Callable
from collections.abc import Mapping
import dataclasses
from typing import Any
from typing import NamedTuple

import jax

from kaiju_jax.data import packing
from kaiju_jax.model import lora
from kaiju_jax.model import transformer


def join(
  trained: Mapping[str, Any], frozen: Mapping[str, Any]
) -> dict[str, Any]:
  """Returns the parameters that `Objective.split` took apart."""
  out = {**frozen, **trained}
  for name in trained.keys() & frozen.keys():
    out[name] = join(trained[name], frozen[name])
  return out


def _split_modules(tree: Mapping[str, Any], module: str) -> tuple[dict, dict]:
  """Returns the parts of a tree inside and outside of modules of a name."""
  inside, outside = {}, {}
  for name, node in tree.items():
    if name == module:
      inside[name] = node
    elif isinstance(node, Mapping):
      parts = _split_modules(node, module)
      for side, part in zip((inside, outside), parts):
        if part:
          side[name] = part
    else:
      outside[name] = node
  return inside, outside


class ZReg(NamedTuple):
  """Z-Reg's coefficients in a step, float32 scalars.

  Attributes:
    attention: the coefficient for the attention logits.
    logits: the coefficient for the output logits.
  """

  attention: jax.Array | float
  logits: jax.Array | float


class Sums(NamedTuple):
  """One microbatch's sums over this device's rows, float32 scalars.

  Devices that hold parts of the same rows must agree on them
  (`collectives.total` over L or V).

  Attributes:
    loss: the sum that the step differentiates, in nats.
    weight: the divisor of the loss and its gradient. It must not depend on the
      parameters.
    metrics: {name: (sum, divisor)}; the step reports their quotients.
  """

  loss: jax.Array
  weight: jax.Array
  metrics: Mapping[str, tuple[jax.Array, jax.Array]]


# (loss_BL, batch) → metrics, as `Sums.metrics`: the metrics that a run computes
# from each token's cross-entropy (nats, not multiplied by weights).
Breakdown = Callable[
  [jax.Array, packing.Batch], Mapping[str, tuple[jax.Array, jax.Array]]
]


def report_nothing(loss_BL: jax.Array, batch: packing.Batch) -> dict[str, Any]:
  """Returns no metrics; the default `Breakdown`."""
  del loss_BL, batch
  return {}


# (model, variables, batch [B, L], z) → sums. `variables` are those of
# `model.apply`; their parameters include the objective's own.
Loss = Callable[
  [transformer.Transformer, Mapping[str, Any], packing.Batch, ZReg], Sums
]


@dataclasses.dataclass(frozen=True)
class Objective:
  """An objective: its loss, extras and parameters.

  Attributes:
    loss: returns the `Sums` of one microbatch.
    extras: {name: shape and dtype of one row's array}, as in
      `packing.Row.extras`. A name ends in the letters of the batched array:
      'label_BLC' is [L, C] in a row.
    parameters: returns new float32 parameters that stand beside the model's, by
      top-level name. The letters of their names shard them, as the model's.
    trained: the top-level names of the parameters that get a gradient; None
      for all. The others are frozen: they keep their bits and have no moments.
    module: the name of the modules, such as 'attention', that alone get a
      gradient among `trained`; '' for all.
    adapters: whether the adapters of frozen weights (`model/lora.py`) get a
      gradient as well; `trained` is not None then.
  """

  loss: Loss
  extras: Mapping[str, jax.ShapeDtypeStruct] = dataclasses.field(
    default_factory=dict
  )
  parameters: Callable[[], Mapping[str, Any]] = dict
  trained: tuple[str, ...] | None = None
  module: str = ''
  adapters: bool = False

  def split(
    self, params: Mapping[str, Any]
  ) -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns the trained and the frozen parameters."""
    if self.adapters:
      return lora.split(params, self.trained)
    names = params.keys() if self.trained is None else self.trained
    trained = {name: params[name] for name in params if name in names}
    frozen = {name: params[name] for name in params if name not in names}
    if not self.module:
      return trained, frozen
    trained, others = _split_modules(trained, self.module)
    return trained, {**frozen, **others}

  def train_adapters(self) -> 'Objective':
    """Returns this objective for a model whose adapters alone are trained.

    Parameters of its own are trained as well.

    Raises:
      ValueError: the objective freezes the model.
    """
    own = tuple(self.parameters())
    if self.trained is not None:
      raise ValueError(
        'lora.rank: must be 0 for an objective that freezes the model, as'
        " 'token_head' with frozen=True, because adapters get no gradient."
      )
    return dataclasses.replace(self, trained=own, adapters=True)

  def check(self, batch: packing.Batch) -> None:
    """Refuses a batch whose extras are not those that the loss reads.

    Raises:
      ValueError: the names differ; the message lists both.
    """
    held = sorted(batch.extras or {})
    if held != sorted(self.extras):
      raise ValueError(
        f'batch.extras holds {held}; the objective reads {sorted(self.extras)}.'
      )
