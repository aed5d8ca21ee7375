"""Prints a model before anything compiles: layers, parameters, KV, memory.

    python -m experiments.describe --preset=110b [--arm=ternary]
    python -m experiments.describe --config=tiny \\
        [--config.model.window=512 …] [--fsdp=8 --tensor=2 --batch=16]

Imports no jax: the figures are arithmetic on the config, and the training
memory is an estimate (`kaiju_jax/costs/footprint.py` has the formula).
"""

from collections.abc import Sequence
import pathlib

from absl import app
from absl import flags
from ml_collections import config_flags

from kaiju_jax.costs import describe
from kaiju_jax.model import presets
from kaiju_jax.runs import command

_PRESET = flags.DEFINE_string(
  'preset', None, f'One of {", ".join(presets.PRESETS)}.'
)
_ARM = flags.DEFINE_enum(
  'arm',
  'int8',
  presets.ARMS,
  'Variant of a preset: int8 and Squinch, neither, or ternary updates.',
)
_CONFIG = config_flags.DEFINE_config_file(
  'config', None, 'An experiment instead: NAME:ARM, or PATH:ARM.'
)
_FSDP = flags.DEFINE_integer(
  'fsdp',
  None,
  'Devices that split D; a preset has a default.',
)
_TENSOR = flags.DEFINE_integer('tensor', None, 'Devices that split F, H and V.')
_BATCH = flags.DEFINE_integer(
  'batch',
  None,
  'Rows per microbatch; by default one per fsdp device.',
)
_LENGTH = flags.DEFINE_integer(
  'length', None, "Tokens per row; by default the config's, or at most 8192."
)
_LENGTHS = flags.DEFINE_list(
  'lengths', [str(x) for x in describe.LENGTHS], 'Lengths of the KV caches.'
)


def main(argv: Sequence[str]) -> None:
  command.check(argv)
  if (_PRESET.value is None) == (_CONFIG.value is None):
    raise app.UsageError('exactly one of --preset and --config is needed.')
  command.refuse_beside(_CONFIG, _ARM)
  _describe()


def _describe() -> None:
  fsdp, tensor = _FSDP.value, _TENSOR.value
  if _CONFIG.value is not None:
    name = pathlib.Path(flags.FLAGS['config'].config_filename).name
    model, data = _CONFIG.value.model, _CONFIG.value.data
    batch, length = data.batch, data.length
  else:
    name, model = _PRESET.value, presets.preset(_PRESET.value, _ARM.value)
    if fsdp is None and tensor is None:
      fsdp, tensor = presets.MESHES.get(name, (1, 1))
    batch, length = fsdp or 1, min(model.max_length, 8192)
  page = describe.describe(
    model,
    name=name,
    batch=batch if _BATCH.value is None else _BATCH.value,
    length=length if _LENGTH.value is None else _LENGTH.value,
    fsdp=1 if fsdp is None else fsdp,
    tensor=1 if tensor is None else tensor,
    lengths=_lengths(_LENGTHS.value),
  )
  page.show()


def _lengths(texts: Sequence[str]) -> list[int]:
  if not texts:
    raise ValueError('--lengths=: must be positive whole numbers.')
  return [_length(text) for text in texts]


def _length(text: str) -> int:
  if not text.isdigit() or not int(text):
    raise ValueError(f'--lengths={text}: must be positive whole numbers.')
  return int(text)


if __name__ == '__main__':
  command.run(main)
