"""What does the vocabulary loss in chunks save, and what does it cost?

    python -m experiments.benchmarks.vocabulary_loss [--chunks=64,256]

Compiles loss and gradient of a one-layer model with a large vocabulary, with
the logits of all tokens at once (`objective.chunk=0`) and of a chunk of tokens
at a time, and prints for each chunk

    MiB       temporaries as XLA plans them
    ratio     … over those of the whole
    loss      the relative difference to the whole's loss
    gradient  the largest difference to the whole's gradient, over the largest
              gradient of the same tensor
    time      seconds over those of the whole, medians of rounds side by side

The largest chunk, all tokens in one, is the contrast: it saves nothing. A
minute on two cores.
"""

from collections.abc import Sequence

from absl import flags

from kaiju_jax.model import config as model_config
from kaiju_jax.quantization import config as quantization_config
from kaiju_jax.reporting import report
from kaiju_jax.runs import command

_CHUNKS = flags.DEFINE_list('chunks', ['64', '256'], 'Tokens at a time.')
_LENGTH = flags.DEFINE_integer('length', 1024, 'Tokens.', lower_bound=2)
_VOCAB = flags.DEFINE_integer('vocab_size', 16_384, 'V.', lower_bound=256)
_WIDTH = flags.DEFINE_integer('d_model', 64, 'D, in steps of 32.', 32)
_EMBEDDING = flags.DEFINE_enum(
  'embedding', 'none', ['none', 'int8'], 'How the table is used.'
)
_REPEATS = flags.DEFINE_integer('repeats', 5, 'Timed rounds.', lower_bound=1)


def main(argv: Sequence[str]) -> None:
  command.check(argv)
  chunks = _chunks()
  report.Report().add(_table(_measured(chunks))).show()


def _chunks() -> list[int]:
  """Returns the chunks to compare: whole first, then all tokens in one last.

  Raises:
    ValueError: a flag that means nothing.
  """
  chunks = command.numbers(_CHUNKS, int, below=_LENGTH.value)
  if _WIDTH.value % 32:
    raise ValueError(
      f'--d_model={_WIDTH.value}: must be a multiple of 32, the head size.'
    )
  return [0, *chunks, _LENGTH.value]


def _model():
  from kaiju_jax.model import transformer

  quantization = quantization_config.none()
  quantization.embedding = _EMBEDDING.value
  return transformer.Transformer(
    model_config.ModelConfig(
      vocab_size=_VOCAB.value,
      d_model=_WIDTH.value,
      layout='L0',
      num_heads=_WIDTH.value // 32,
      head_dim=32,
      d_ff=_WIDTH.value,
      max_length=_LENGTH.value,
      window=64,
      dtype='float32',
      quantization=quantization,
    )
  )


def _measured(chunks: Sequence[int]) -> dict[int, dict[str, float]]:
  """Returns {chunk: {column: figure}}."""
  import jax
  import numpy as np

  from kaiju_jax.data import packing
  from kaiju_jax.kernels import timing
  from kaiju_jax.objectives import language
  from kaiju_jax.training import state

  model = _model()
  params = state.init_params(model, 0)
  rng = np.random.default_rng(0)
  piece = packing.Piece(tokens=rng.integers(1, _VOCAB.value, _LENGTH.value))
  batch = packing.stack([packing.row([piece], _LENGTH.value)])

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
    _REPEATS.value,
  )
  temporaries = {
    chunk: program.memory_analysis().temp_size_in_bytes
    for chunk, program in programs.items()
  }
  loss, gradient = made[0]
  return {
    chunk: {
      'MiB': temporaries[chunk] / 2**20,
      'ratio': temporaries[chunk] / temporaries[0],
      'loss': abs(found / loss - 1),
      'gradient': max(
        np.abs(a - b).max() / np.abs(b).max()
        for a, b in zip(jax.tree.leaves(by), jax.tree.leaves(gradient))
      ),
      'time': seconds[chunk] / seconds[0],
    }
    for chunk, (found, by) in made.items()
  }


def _table(figures: dict[int, dict[str, float]]):
  forms = {'MiB': ',.1f', 'ratio': '.2f', 'time': '.2f'}
  return report.Table(
    [
      (
        f'{chunk:,}' if chunk else 'whole',
        *(format(value, forms.get(name, '.1e')) for name, value in own.items()),
      )
      for chunk, own in figures.items()
    ],
    ('chunk', *figures[0]),
    f'Loss and gradient of {_LENGTH.value:,} tokens over'
    f' {_VOCAB.value:,} entries, D = {_WIDTH.value},'
    f' embedding={_EMBEDDING.value!r}',
  )


if __name__ == '__main__':
  command.run(main)
