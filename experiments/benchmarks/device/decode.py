"""How many tokens per second does 250m decode, at batches of 1 to 256?

Random weights and prompts; a step is one call with one token per row, greedy,
behind 1,024 tokens. Each case has a process of its own.
"""

from collections.abc import Callable
import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from kaiju_jax.decoding.device import decoder as decoder_lib
from kaiju_jax.experiments.benchmarks.parts import decode_speed
from kaiju_jax.kernels import timing
from kaiju_jax.model import config as model_config
from kaiju_jax.model import presets
from kaiju_jax.model import transformer
from kaiju_jax.training import state

from . import setting as setting_lib

_BATCHES = 1, 64, 256, 16, 4
_LENGTH, _STEPS, _CHUNK = 1024, 32, 512
_ARMS = 'int8', 'bf16'


def _config(arm: str, dry: bool) -> model_config.ModelConfig:
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
    for arm in _ARMS
  }


def measure(
  setting: setting_lib.Setting, case: tuple[str, int]
) -> dict[str, Any]:
  """Returns the seconds of prefill and step, and the cache's bytes."""
  arm, batch = case
  config = _config(arm, setting.dry)
  length, steps = (16, 2) if setting.dry else (_LENGTH, _STEPS)
  params = state.init_params(transformer.Transformer(config), 0)
  times = decode_speed.times(
    params,
    config,
    batch,
    length,
    steps=steps,
    runs=1 if setting.dry else min(3, setting.repeats),
    chunk=min(_CHUNK, length),
  )
  statistics = jax.devices()[0].memory_stats() or {}
  return {
    'arm': arm,
    'batch': batch,
    'length': length,
    'prefill': timing.spread(times.prefill),
    'step': timing.spread(times.step),
    'cache_bytes': times.cache_bytes,
    'peak_bytes': statistics.get('peak_bytes_in_use'),
  }


def programs(
  setting: setting_lib.Setting, device: Any
) -> dict[str, Callable[[], tuple[Any, Any]]]:
  """Returns a step and a prefill call of each arm, of all layers and of four.

  Layers differ in their caches alone, so that four, which compile within
  seconds, hold what can fail.
  """
  del device
  found = {}
  for layers in 4, None:
    for arm in _ARMS:
      config = _config(arm, setting.dry)
      label = f'{arm}, all layers'
      if layers is not None and not setting.dry:
        config = dataclasses.replace(config, layout='L0 L0 L2 G3')
        config.num_layers = layers
        label = f'{arm}, {layers} layers'
      for tokens in 1, _CHUNK:
        for batch in 1, 64:
          name = f'{label}, {batch} × {tokens}'
          found[name] = functools.partial(_program, config, batch, tokens)
  return found


def _program(config, batch, tokens):
  shapes = jax.eval_shape(
    lambda: state.draw_params(transformer.Transformer(config), 0)
  )
  params = jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), shapes)
  decoder = decoder_lib.Decoder(
    params, config, rows=batch, length=_LENGTH + _STEPS
  )
  call = functools.partial(decode_speed.greedy, decoder.network)
  arguments = (
    decoder.params,
    decoder.cache,
    decoder.account.rings(),
    np.zeros(batch, np.int32),
    np.zeros((batch, tokens), np.int32),
  )
  abstract = jax.tree.map(
    lambda x: jax.ShapeDtypeStruct(jnp.shape(x), x.dtype), arguments
  )
  return jax.jit(call, donate_argnums=1), abstract
