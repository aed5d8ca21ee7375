"""The vocabulary's loss in chunks: what it saves, and what it costs."""

from typing import Any

import jax
import numpy as np

from kaiju_jax.data import packing
from kaiju_jax.kernels import timing
from kaiju_jax.model import config as model_config
from kaiju_jax.model import transformer
from kaiju_jax.objectives import language
from kaiju_jax.quantization import config as quantization_config
from kaiju_jax.reporting import report
from kaiju_jax.training import state

_LENGTH, _VOCABULARY, _WIDTH = 1024, 16_384, 64


def table(settings: Any) -> report.Table:
  """Returns a row per chunk, beside all tokens at once.

  Its columns are temporaries as XLA plans them, and their ratio to the whole's;
  the loss's relative difference to the whole's; the gradient's largest
  difference, over the largest gradient of the same tensor; and seconds over
  those of the whole, medians of rounds side by side.

  Raises:
    ValueError: a chunk as long as all tokens.
  """
  for chunk in settings.chunks:
    if chunk >= _LENGTH:
      raise ValueError(f'--chunks={chunk}: must be below {_LENGTH}.')
  figures = _measure([0, *settings.chunks, _LENGTH], settings)
  return report.Table(
    [
      (
        f'{chunk:,}' if chunk else 'whole',
        f'{mib:,.1f}',
        f'{ratio:.2f}',
        f'{loss:.1e}',
        f'{gradient:.1e}',
        f'{time:.2f}',
      )
      for chunk, (mib, ratio, loss, gradient, time) in figures.items()
    ],
    ('chunk', 'MiB', 'ratio', 'loss', 'gradient', 'time'),
    f'Loss and gradient of {_LENGTH:,} tokens over {_VOCABULARY:,} entries,'
    f' D = {_WIDTH}, embedding={settings.embedding!r}',
  )


def _model(embedding: str) -> transformer.Transformer:
  quantization = quantization_config.none()
  quantization.embedding = embedding
  return transformer.Transformer(
    model_config.ModelConfig(
      vocab_size=_VOCABULARY,
      d_model=_WIDTH,
      layout='L0',
      num_heads=2,
      head_dim=32,
      d_ff=_WIDTH,
      max_length=_LENGTH,
      window=64,
      dtype='float32',
      quantization=quantization,
    )
  )


def _measure(chunks, settings) -> dict[int, tuple[float, ...]]:
  """Returns {chunk: its figures}."""
  model = _model(settings.embedding)
  params = state.init_params(model, 0)
  rng = np.random.default_rng(0)
  piece = packing.Piece(tokens=rng.integers(1, _VOCABULARY, _LENGTH))
  batch = packing.stack([packing.row([piece], _LENGTH)])

  def compiled(chunk):
    def loss(params, batch):
      return language.weighted_cross_entropy(
        model, params, batch, 0.0, 0.0, chunk=chunk
      )

    return jax.jit(jax.value_and_grad(loss)).lower(params, batch).compile()

  programs = {chunk: compiled(chunk) for chunk in chunks}
  made = {
    chunk: jax.device_get(program(params, batch))
    for chunk, program in programs.items()
  }
  seconds = timing.medians(
    {
      chunk: (lambda program=program: program(params, batch))
      for chunk, program in programs.items()
    },
    settings.repeats,
  )
  temporaries = {
    chunk: program.memory_analysis().temp_size_in_bytes
    for chunk, program in programs.items()
  }
  loss, gradient = made[0]
  return {
    chunk: (
      temporaries[chunk] / 2**20,
      temporaries[chunk] / temporaries[0],
      abs(found / loss - 1),
      max(
        np.abs(a - b).max() / np.abs(b).max()
        for a, b in zip(jax.tree.leaves(by), jax.tree.leaves(gradient))
      ),
      seconds[chunk] / seconds[0],
    )
    for chunk, (found, by) in made.items()
  }
