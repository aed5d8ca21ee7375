"""How many tokens per second does 250m decode, at batches of 1 to 256?

Random weights and prompts; a step is one call with one token per row, greedy,
behind 1,024 tokens. Each case has a process of its own.
"""

from typing import Any

import jax

from kaiju_jax.decoding.device import decoder as decoder_lib
from kaiju_jax.experiments.benchmarks.parts import decode_speed
from kaiju_jax.kernels import timing
from kaiju_jax.model import config as model_config
from kaiju_jax.model import presets
from kaiju_jax.model import transformer
from kaiju_jax.training import state

from . import setting as setting_lib

_BATCHES = 1, 64, 256, 16, 4
LENGTH, STEPS, CHUNK = 1024, 32, 512
ARMS = 'int8', 'bf16'


def config_of(arm: str, dry: bool) -> model_config.ModelConfig:
  if not dry:
    return presets.preset('250m', arm)
  quantization = presets.preset('1m', arm).quantization
  return model_config.ModelConfig(
    vocab_size=64,
    d_model=64,
    num_heads=2,
    head_dim=32,
    d_ff=64,
    layout='L0 G1',
    window=16,
    max_length=64,
    quantization=quantization,
  )


def cases(
  setting: setting_lib.Setting,
) -> dict[str, tuple[float, tuple[str, int]]]:
  """Returns both arms at each batch."""
  if setting.dry:
    return {'int8, batch 2': (20, ('int8', 2))}
  return {
    f'{arm}, batch {batch}': (25, (arm, batch))
    for batch in _BATCHES
    for arm in ARMS
  }


def measure(
  setting: setting_lib.Setting, case: tuple[str, int]
) -> dict[str, Any]:
  """Returns the seconds of prefill and step, and the cache's bytes."""
  arm, batch = case
  config = config_of(arm, setting.dry)
  length, steps = (16, 2) if setting.dry else (LENGTH, STEPS)
  params = state.init_params(transformer.Transformer(config), 0)
  decoder = decoder_lib.Decoder(
    params, config, rows=batch, length=length + steps
  )
  run = decode_speed.runner(decoder, length, steps, min(CHUNK, length))
  run()  # Compiles.
  rounds = [run() for _ in range(min(3, setting.repeats))]
  prefill, step = map(timing.spread, zip(*rounds))
  statistics = jax.devices()[0].memory_stats() or {}
  return {
    'arm': arm,
    'batch': batch,
    'length': length,
    'prefill': prefill,
    'step': step,
    'cache_bytes': decoder.cache_bytes,
    'peak_bytes': statistics.get('peak_bytes_in_use'),
  }
