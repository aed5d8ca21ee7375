"""Estimates a training step's seconds by arithmetic, for int8 and Squinch.

With P numbers in the layers' matrices, t devices in a tensor group, and T
tokens of a step divided by all devices, each device computes and sends

    matmuls     2 P T forward, the same again where a layer is recomputed,
                2 P T for the inputs' gradient and 2 P T for the weights'
    attention   4 H K T for each position seen, forward and recomputed; 2.5
                times that backward
    head        2 D V T forward, the same for each gradient; in int8 where
                `quantization.embedding` is int8 and the layers are, otherwise
                in bf16
    gather      P/t codes (1 byte) or bf16 (2), forward and backward, per
                microbatch
    reduction   P/t gradients per microbatch: 6 bits, all-to-all; or bf16,
                reduce-scatter
    update      where updates are ternary, instead of the gathers: P/t trits,
                five to a byte, once per step; between the optimizer and the
                next step, where no matmul overlaps it
    sequence    [B, L, D] over `tensor`, in each layer: gathered twice on
                entering and scattered twice on leaving; recomputed, except the
                last leaving; and the transpose of all four backward. In bf16,
                except that an int8 forward pass enters with codes: D + 4 bytes
                per token, of which 4 are a scale

    seconds = bf16 operations / rate of bf16 matmuls
            + int8 operations / rate of int8 matmuls  (+) the wire

(+) is a sum or an overlap; `Seconds` has three variants. An arm says which
matmuls are int8 and which tensors cross in few bits. Weights' gradients are
bf16 matmuls in every arm, as in the sources ("bf16 local gradients"). The model
leaves out everything that is neither a matmul nor on the wire (norms,
quantizing, softmax, encoding, the optimizer, updating a replica), bubbles and
latency. On the wire it leaves out the embedding and the head, keys and values
(K wide), and tensors as small as the weights' scales. Real steps contain all of
this, so the real ratios between arms are nearer to 1.
"""

from collections.abc import Mapping
import dataclasses
from typing import NamedTuple

from kaiju_jax.costs import accelerator as accelerator_lib
from kaiju_jax.costs import footprint
from kaiju_jax.costs import links
from kaiju_jax.model import config as model_config
from kaiju_jax.sharding import config as sharding_config

# Bytes per number: eight numbers share a byte for the header and one for their
# signs, and have 4 bits each.
_SQUINCH = 0.75
# Trits, five to a byte; events and padding are below 1 % of a wide weight.
_TERNARY = 0.2


@dataclasses.dataclass(frozen=True)
class Arm:
  """A choice of int8 matmuls and of tensors that cross in few bits."""

  name: str  # The printed name; 'both ways' means an int8 inputs' gradient too.
  # Dtype of the forward matmuls, of the weights on the wire, and of the
  # sequence where it enters attention and feed-forward.
  forward: str
  input_gradient: str  # Dtype of the matmuls that make the inputs' gradient.
  squinch: bool  # Whether weights' gradients cross in 6 bits.
  # Whether every device holds the weights of its tensor rank as int8 and
  # updates cross in trits; then no weight is gathered.
  ternary: bool = False


ARMS = (
  Arm('bf16', 'bf16', 'bf16', False),
  Arm('bf16 + Squinch', 'bf16', 'bf16', True),
  Arm('int8 forward', 'int8', 'bf16', False),
  Arm('int8 forward + Squinch', 'int8', 'bf16', True),
  Arm('ternary updates + Squinch', 'int8', 'bf16', True, ternary=True),
  Arm('int8 both ways', 'int8', 'int8', False),
  Arm('int8 both ways + Squinch', 'int8', 'int8', True),
)


class Peak(NamedTuple):
  """A training step at the peaks of a chip's data sheet."""

  chip: str  # The chip's name.
  token_operations: float  # Operations per row token, none recomputed.
  int8_share: float  # The share of them that are int8.
  token_seconds: float  # Seconds of one device per row token.


@dataclasses.dataclass(frozen=True)
class Seconds:
  """The seconds of a step, by part."""

  matmul: float  # All matmuls.
  fsdp: float  # Gathers, reductions and updates of weights.
  tensor: float  # Gathers and scatters of the sequence.
  update: float = 0.0  # The part of `fsdp` that comes between two steps.

  @property
  def apart(self) -> float:
    """Returns the seconds if nothing overlaps."""
    return self.matmul + self.fsdp + self.tensor

  @property
  def overlapped(self) -> float:
    """Returns the seconds if weights travel beside the matmuls.

    A layer's weights are known ahead. The matmuls wait for the sequence, which
    is not, and the next step waits for the update.
    """
    beside = max(self.matmul + self.tensor, self.fsdp - self.update)
    return beside + self.update

  @property
  def hidden(self) -> float:
    """Returns the seconds of the longest part alone: no step is faster."""
    return max(self.matmul, self.fsdp, self.tensor)


def operations(
  config: model_config.ModelConfig, tokens: float, length: int, arm: Arm
) -> dict[str, float]:
  """Returns one device's {'bf16': operations, 'int8': operations} of a step.

  Args:
    tokens: tokens of the step, divided by all devices.
    length: tokens of a row, which is one document.
    arm: the arm, of which the dtypes count here.
  """
  sums = {'bf16': 0.0, 'int8': 0.0}
  matrices, recomputed = _matrices(config)
  sums[arm.forward] += 2 * (matrices + recomputed) * tokens
  sums[arm.input_gradient] += 2 * matrices * tokens
  sums['bf16'] += 2 * matrices * tokens
  head = 2 * config.d_model * config.vocab_size * tokens
  is_coded = config.quantization.embedding == 'int8'
  for dtype in arm.forward, arm.input_gradient, 'bf16':
    sums[dtype if is_coded else 'bf16'] += head
  attention = attention_operations(config, length) * tokens
  passes = 2 if config.remat == 'layer' else 1
  # QKᵀ is half of the forward pass and reads codes.
  qk = 'int8' if arm.forward == 'int8' else 'bf16'
  sums[qk] += passes * attention / 2
  sums['bf16'] += passes * attention / 2 + 2.5 * attention
  return sums


def peak(
  config: model_config.ModelConfig,
  length: int,
  chip: accelerator_lib.Chip,
) -> Peak:
  """Returns a step's peak, the bound of a roofline without its memory.

  bf16 and int8 operations take their seconds one after the other, each at its
  own rate of the data sheet. Recomputed operations are not counted, so that
  what `remat` costs lowers a utilization; rows count as one document each, and
  float32 as bf16.

  Args:
    config: a model of which all weights are trained.
    length: tokens of a row.
    chip: a chip with peaks.
  """
  quantization = config.quantization
  is_int8 = quantization.matmul == 'int8'
  arm = Arm(
    'own',
    'int8' if is_int8 else 'bf16',
    'int8' if is_int8 and quantization.input_gradient == 'int8' else 'bf16',
    squinch=False,
  )
  plain = dataclasses.replace(config, remat='none')
  counted = operations(plain, 1.0, length, arm)
  if is_int8 != (quantization.qk == 'int8'):
    qk = attention_operations(plain, length) / 2
    counted['int8'] += -qk if is_int8 else qk
    counted['bf16'] += qk if is_int8 else -qk
  total = sum(counted.values())
  seconds = counted['bf16'] / chip.peak_bf16 + counted['int8'] / chip.peak_int8
  return Peak(chip.name, total, counted['int8'] / total, seconds)


def attention_operations(
  config: model_config.ModelConfig, length: int
) -> float:
  """Returns the forward operations of all layers' attention, per token."""
  seen = 0.0
  for layer in config.layers():
    most = min((layer.window or length) + layer.sinks, length)
    # The first `most` positions see only 1, 2, … positions.
    seen += most - most * (most - 1) / (2 * length)
  return 4 * config.num_heads * config.head_dim * seen


def seconds(
  config: model_config.ModelConfig,
  accelerator: accelerator_lib.Accelerator,
  mesh: sharding_config.MeshConfig,
  rows: int,
  length: int,
  arm: Arm,
  microbatches: int = 1,
) -> Seconds:
  """Returns one step's seconds.

  Args:
    mesh: widths of the axes.
    rows: rows per microbatch, on all devices together.
    length: tokens per row.
    microbatches: microbatches per step.

  Raises:
    ValueError: see `links.seconds`.
  """
  chip = accelerator.chip
  tokens = rows * length * microbatches / mesh.devices
  counted = operations(config, tokens, length, arm)

  def over(kind, result_bytes, axis):
    return links.seconds(kind, result_bytes, (axis,), accelerator, mesh)

  weights = footprint.count(layer_matrices(config)) / mesh.tensor
  passes = 2 if config.remat == 'layer' else 1
  gathers = update = 0.0
  if arm.ternary:
    update = over('all-gather', weights * _TERNARY, 'fsdp')
  else:
    gathers = passes * over('all-gather', weights * _WIRE[arm.forward], 'fsdp')
  if arm.squinch:
    reduction = over('all-to-all', weights * _SQUINCH, 'fsdp')
  else:
    reduction = over('reduce-scatter', weights * 2 / mesh.fsdp, 'fsdp')
  # A scatter's operand is as large as a gather's result, so both take as long.
  sequence = over(
    'all-gather',
    rows / mesh.fsdp * length * sequence_bytes(config, arm),
    'tensor',
  )
  return Seconds(
    matmul=counted['bf16'] / chip.matmul_bf16
    + counted['int8'] / chip.matmul_int8,
    fsdp=microbatches * (gathers + reduction) + update,
    tensor=microbatches * len(config.layers()) * sequence,
    update=update,
  )


def sequence_bytes(config: model_config.ModelConfig, arm: Arm) -> int:
  """Returns the bytes per token that a layer gathers and scatters."""
  is_recomputed = config.remat == 'layer'
  floats = 2 * config.d_model
  entering = config.d_model + 4 if arm.forward == 'int8' else floats
  enters = 4 if is_recomputed else 2
  leaves = 3 if is_recomputed else 2
  backward = 4
  return enters * entering + (leaves + backward) * floats


def table(
  config: model_config.ModelConfig,
  accelerator: accelerator_lib.Accelerator,
  mesh: sharding_config.MeshConfig,
  rows: int,
  length: int,
  microbatches: int = 1,
) -> Mapping[str, Seconds]:
  """Returns {arm's name: its step's seconds}."""
  return {
    arm.name: seconds(
      config, accelerator, mesh, rows, length, arm, microbatches
    )
    for arm in ARMS
  }


_WIRE = {'bf16': 2, 'int8': 1}


def layer_matrices(
  config: model_config.ModelConfig,
) -> list[footprint.Parameter]:
  """Returns the matrices of the layers, which multiply every token."""
  return [
    parameter
    for parameter in footprint.parameters(config)
    if parameter.family in ('attention', 'keys and values', 'feed-forward')
    and 'D' in parameter.letters
  ]


def _matrices(config) -> tuple[int, int]:
  """Returns how many weights multiply forward, and how many when recomputed.

  Recomputing a layer skips its last matmul, whose output is not needed. A layer
  that shares keys and values has no projections for them.
  """
  parameters = layer_matrices(config)
  total = footprint.count(parameters)
  if config.remat != 'layer':
    return total, 0
  last = next(p for p in parameters if p.name == 'w_out_DF')
  return total, total - last.size
