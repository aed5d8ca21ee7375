"""Bounds a replica's tokens per second by arithmetic; no device has run them.

A chip's file gives operations/s and bytes/s, `costs/footprint.py` the weights
and `model/layers.py` the bytes of keys and values:

    prefill    2 operations per weight and token, and attention
    decode     a round of B rows takes max(matmuls, weights read) seconds, and
               max(attention, keys and values read)

The parts of a layer wait for one another, so that their seconds add up. All
else (norms, sampling, the host, bubbles) is left out: a real engine is slower.
"""

from kaiju_jax.costs import accelerator
from kaiju_jax.costs import footprint
from kaiju_jax.costs import step_time
from kaiju_jax.model import config as model_config

# Memory that a replica leaves for activations and the runtime: our guess.
_FREE = 0.1


def paper_rate(
  config: model_config.ModelConfig, chip: accelerator.Chip
) -> float:
  """Returns the tokens/s that the data sheet's int8 peak allows a prefill."""
  return chip.peak_int8 / (2 * _weights(config))


def prefill_rate(
  config: model_config.ModelConfig, chip: accelerator.Chip, length: int
) -> float:
  """Returns the tokens/s of one chip that prefills texts of `length`."""
  attention = step_time.attention_operations(config, length)
  return 1 / (
    2 * _weights(config) / _matmul(config, chip)
    + _attention_seconds(config, chip, attention)
  )


def decode_rate(
  config: model_config.ModelConfig,
  chip: accelerator.Chip,
  length: int,
  rows: int,
) -> float:
  """Returns the tokens/s of one chip that decodes behind `length` tokens.

  Args:
    chip: the chip, which holds the whole model.
    length: tokens in front of each drawn one.
    rows: most rows of a round; memory may hold fewer.

  Raises:
    ValueError: the chip's memory does not hold the model and one row.
  """
  rows = min(rows, most_rows(config, chip, length))
  cache = footprint.kv_caches(config, length)[0].bytes
  head = config.d_model * config.vocab_size
  operations = 2 * (_weights(config) + head)
  # The last of `length` positions sees what `n` of them do minus what n − 1 do.
  seen = step_time.attention_operations
  attention = length * seen(config, length) - (length - 1) * seen(
    config, length - 1
  )
  matmuls = max(
    rows * operations / _matmul(config, chip),
    weight_bytes(config) / chip.hbm_bandwidth,
  )
  reading = max(
    rows * _attention_seconds(config, chip, attention),
    rows * cache / chip.hbm_bandwidth,
  )
  return rows / (matmuls + reading)


def most_rows(
  config: model_config.ModelConfig, chip: accelerator.Chip, length: int
) -> int:
  """Returns how many rows of `length` tokens the chip's memory holds.

  Raises:
    ValueError: it holds none.
  """
  room = (1 - _FREE) * chip.hbm_bytes - weight_bytes(config)
  rows = int(room // footprint.kv_caches(config, length)[0].bytes)
  if rows < 1:
    raise ValueError(
      f'{chip.name} has {chip.hbm_bytes / 2**30:.0f} GiB: too little for the'
      f' model and a row of {length:,} tokens.'
    )
  return rows


def weight_bytes(config: model_config.ModelConfig) -> int:
  """Returns the bytes of the weights as they are served."""
  count = footprint.count(footprint.parameters(config))
  return count * (1 if config.quantization.kv == 'int8' else 2)


def _weights(config: model_config.ModelConfig) -> int:
  """Returns how many weights multiply each token of a prefill."""
  return footprint.count(step_time.layer_matrices(config))


def _matmul(config: model_config.ModelConfig, chip: accelerator.Chip) -> float:
  is_coded = config.quantization.kv == 'int8'
  return chip.matmul_int8 if is_coded else chip.matmul_bf16


def _attention_seconds(
  config: model_config.ModelConfig, chip: accelerator.Chip, operations: float
) -> float:
  """Returns seconds of attention, half of which (QKᵀ) reads codes."""
  half = operations / 2
  return half / _matmul(config, chip) + half / chip.matmul_bf16
