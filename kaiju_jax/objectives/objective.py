"""An objective is a value: what one training step minimizes.

    step.make(experiment, mesh, objective)

The step owns everything else: microbatches, the mesh, the optimizer, ternary
replicas, metrics. It minimizes

    Σ loss / Σ weight

where both sums run over the rows of all devices and microbatches. An objective
says

    extras       which arrays it reads beside the rows of a batch
    loss         the sums of one microbatch (`Sums`): its loss, the weight that
                 the loss is divided by, and metrics, each with its own divisor
    parameters   which parameters it trains beside the model's own
    trained      which parameters get a gradient; the others are frozen

so that the mathematics of a new objective is one file. How two more would
be written:

    preference    extras reply_BL, group_BY, kept_BY and reference_BY (whose
                  reply a token belongs to; per reply its group, whether it was
                  kept, and the reference model's log-probability); loss
                  Σ_groups −log(e^r_kept / Σ_group e^r); weight the number of
                  groups, so that groups of one weigh nothing
    fine-tuning   `language` as it is: the rows' own weights are 0 outside the
                  turns that are to be learned

A batch is rows and extras (`packing.Batch.extras`, a dictionary of arrays): a
row source returns a row's extras with the row, so that batching, placement on
a mesh and resuming need no code of an objective's own.
"""

from collections.abc import Callable
from collections.abc import Mapping
import dataclasses
from typing import Any
from typing import NamedTuple

import jax

from kaiju_jax.data import packing
from kaiju_jax.model import transformer


class ZReg(NamedTuple):
  """Z-Reg's coefficients of this step, float32 scalars.

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
    loss: what is differentiated, in nats.
    weight: what the step divides the loss and its gradient by. It must not
      depend on the parameters.
    metrics: {name: (sum, divisor)}; the step reports their quotients.
  """

  loss: jax.Array
  weight: jax.Array
  metrics: Mapping[str, tuple[jax.Array, jax.Array]]


# (loss_BL, batch) → metrics, as `Sums.metrics`: what a run reports of each
# token's cross-entropy (nats, without the rows' weights) beside its mean.
Breakdown = Callable[
  [jax.Array, packing.Batch], Mapping[str, tuple[jax.Array, jax.Array]]
]


def report_nothing(loss_BL: jax.Array, batch: packing.Batch) -> dict:
  """The `Breakdown` that reports nothing."""
  del loss_BL, batch
  return {}


# (model, variables, batch [B, L], z) → sums. `variables` are as `model.apply`
# takes them; the objective's own parameters lie beside the model's.
Loss = Callable[
  [transformer.Transformer, Mapping[str, Any], packing.Batch, ZReg], Sums
]


@dataclasses.dataclass(frozen=True)
class Objective:
  """What one training step minimizes; see the module.

  Attributes:
    loss: returns the `Sums` of one microbatch.
    extras: {name: shape and dtype of one row's array}, as `packing.Row.extras`
      holds them. A name ends in the letters of the batched array:
      'label_BLC' is [L, C] in a row.
    parameters: makes the float32 parameters that stand beside the model's, by
      top-level name. They are stored on a mesh by the letters of their names,
      as the model's are.
    trained: the top-level names of the parameters that get a gradient; None
      for all. The others are frozen: they keep their bits and have no moments.
  """

  loss: Loss
  extras: Mapping[str, jax.ShapeDtypeStruct] = dataclasses.field(
    default_factory=dict
  )
  parameters: Callable[[], Mapping[str, Any]] = dict
  trained: tuple[str, ...] | None = None

  def split(self, params: Mapping[str, Any]) -> tuple[dict, dict]:
    """Returns the trained and the frozen parameters."""
    names = params.keys() if self.trained is None else self.trained
    trained = {name: params[name] for name in params if name in names}
    frozen = {name: params[name] for name in params if name not in names}
    return trained, frozen

  def check(self, batch: packing.Batch) -> None:
    """Refuses a batch whose extras are not those that the loss reads.

    Raises:
      ValueError: names both.
    """
    held = sorted(batch.extras or {})
    if held != sorted(self.extras):
      raise ValueError(
        f'batch.extras holds {held}; the objective reads {sorted(self.extras)}.'
      )
