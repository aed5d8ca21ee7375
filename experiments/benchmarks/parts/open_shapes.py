"""Shapes of open models, and folders of them with random weights."""

from collections.abc import Iterator
import contextlib
import dataclasses
import json
import pathlib
import tempfile
from typing import Any

from kaiju_jax.model import config as model_config
from kaiju_jax.quantization import config as quantization_config

_LLAMA = {
  'model_type': 'llama',
  'vocab_size': 49_152,
  'hidden_size': 576,
  'num_hidden_layers': 30,
  'num_attention_heads': 9,
  'num_key_value_heads': 3,
  'head_dim': 64,
  'intermediate_size': 1536,
  'max_position_embeddings': 8192,
  'rms_norm_eps': 1e-5,
  'rope_parameters': {'rope_type': 'default', 'rope_theta': 100_000.0},
}
_QWEN3 = {
  'model_type': 'qwen3',
  'vocab_size': 151_936,
  'hidden_size': 1024,
  'num_hidden_layers': 28,
  'num_attention_heads': 16,
  'num_key_value_heads': 8,
  'head_dim': 128,
  'intermediate_size': 3072,
  'max_position_embeddings': 40_960,
  'rms_norm_eps': 1e-6,
  'rope_parameters': {'rope_type': 'default', 'rope_theta': 1_000_000.0},
}
SHAPES = {'smollm2-135m': _LLAMA, 'qwen3-0.6b': _QWEN3}
NAMES = 'arcee-97m', *SHAPES


def arcee(**changes) -> model_config.ModelConfig:
  """Returns a model in Arcee's shape, unless changed.

  It has 96.6 M parameters in float32, squared ReLU without a gate, one head of
  keys and values, and global layers alone.
  """
  defaults = model_config.ModelConfig(
    vocab_size=32_000,
    d_model=768,
    num_layers=12,
    num_heads=12,
    head_dim=64,
    d_ff=3072,
    max_length=4096,
    window=1024,
    period=1,
    local_share=1,
    global_share=1,
    dtype='float32',
    quantization=quantization_config.none(),
  )
  return dataclasses.replace(defaults, **changes)


def write(path: pathlib.Path, fields: dict[str, Any]) -> None:
  """Writes a folder with random bfloat16 weights, tied and gated by silu."""
  import ml_dtypes
  import numpy as np
  import safetensors.numpy

  from kaiju_jax.interchange import tensors
  from kaiju_jax.interchange.families import registry

  fields = fields | {
    'hidden_act': 'silu',
    'tie_word_embeddings': True,
    'dtype': 'bfloat16',
  }
  (path / 'config.json').write_text(json.dumps(fields))
  rng = np.random.default_rng(0)
  out = {}
  for name, shape in tensors.shapes(registry.read(fields)).items():
    x = np.ones(shape, np.float32)
    if 'norm' not in name:
      x = rng.standard_normal(shape, np.float32)
      # Logits of a standard deviation of two.
      x *= (2.0 if 'embed' in name else 1.0) * shape[-1] ** -0.5
    out[name] = x.astype(ml_dtypes.bfloat16)
  safetensors.numpy.save_file(out, path / 'model.safetensors', {'format': 'pt'})


def _write_arcee(path: pathlib.Path) -> None:
  from kaiju_jax.interchange import hugging_face
  from kaiju_jax.model import transformer
  from kaiju_jax.training import state

  config = arcee()
  params = state.init_params(transformer.Transformer(config), 0)
  hugging_face.write(path, params, config)


@contextlib.contextmanager
def provide(shape: str) -> Iterator[pathlib.Path]:
  """Yields a folder of one of `NAMES`, which is removed at the end."""
  with tempfile.TemporaryDirectory() as name:
    path = pathlib.Path(name) / 'model'
    if shape in SHAPES:
      path.mkdir()
      write(path, SHAPES[shape])
    else:
      _write_arcee(path)
    yield path
