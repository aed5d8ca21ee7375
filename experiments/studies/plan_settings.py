"""The flags of the commands that plan: models, slices and fleets."""

import dataclasses
from typing import Annotated
from typing import Literal

from absl import app

from kaiju_jax.costs import describe
from kaiju_jax.model import presets
from kaiju_jax.runs import flags
from kaiju_jax.training import experiment as experiment_lib


@dataclasses.dataclass(frozen=True, kw_only=True)
class AotReport:
  """Which step is compiled for which slice."""

  # A model of published shape.
  preset: Literal[*presets.PRESETS] | None = None
  # An experiment instead: NAME:ARM, or PATH:ARM.
  config: experiment_lib.Experiment | None = None
  # A slice of tpu_gpu_configs/, such as h100_512.
  accelerator: str | None = None
  # File that gets the figures as JSON.
  json: str | None = None
  # Variant of a preset: int8 and Squinch, neither, or ternary updates.
  arm: Literal[*presets.ARMS] = 'int8'
  # Instead of the accelerator's.
  fsdp: int | None = None
  # Instead of the accelerator's.
  tensor: int | None = None
  # Rows of a microbatch, one per fsdp device by default; of --decode: texts, 64
  # by default; of --kernels: rows per tile, those of blocks.py by default.
  rows: int | None = None
  # Tokens per row, with a preset.
  length: Annotated[int, flags.Bounds(2)] = 8192
  # Microbatches per step, with a preset.
  microbatches: flags.Positive = 1
  # Whether to compile; the time model is printed anyway.
  compile: bool = True
  # Instead of a step: a preset's decoding on all devices of the slice.
  decode: bool = False
  # With --decode: how many layers are compiled; one repeating block by default.
  layers: flags.Positive | None = None
  # Instead of a step: what the compiler's schedule says of a TPU's attention
  # kernels.
  kernels: bool = False
  # With --kernels: heads per device.
  heads: flags.Positive = 12
  # With --kernels: tokens of the window; none by default.
  window: int | None = None
  # With --kernels: dtype of q, k and v.
  kind: Literal['bfloat16', 'int8', 'float32'] = 'bfloat16'
  # With --kernels: keys per block, beside --rows.
  keys: int | None = None

  def __post_init__(self) -> None:
    flags.need(accelerator=self.accelerator)
    if self.kernels and (self.rows is None) != (self.keys is None):
      raise app.UsageError('--rows and --keys: give both or neither.')
    if not self.kernels and (self.preset is None) == (self.config is None):
      raise app.UsageError('exactly one of --preset and --config is needed.')


@dataclasses.dataclass(frozen=True, kw_only=True)
class Describe:
  """Which model is described, on how many devices."""

  # A model of published shape.
  preset: Literal[*presets.PRESETS] | None = None
  # Variant of a preset: int8 and Squinch, neither, or ternary updates.
  arm: Literal[*presets.ARMS] = 'int8'
  # An experiment instead: NAME:ARM, or PATH:ARM.
  config: experiment_lib.Experiment | None = None
  # Devices that split D; a preset has a default.
  fsdp: int | None = None
  # Devices that split F, H and V.
  tensor: int | None = None
  # Rows per microbatch; by default one per fsdp device.
  batch: int | None = None
  # Tokens per row; by default the config's, or at most 8192.
  length: int | None = None
  # Lengths of the KV caches.
  lengths: tuple[int, ...] = describe.LENGTHS

  def __post_init__(self) -> None:
    if (self.preset is None) == (self.config is None):
      raise app.UsageError('exactly one of --preset and --config is needed.')
