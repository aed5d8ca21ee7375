"""How long the first token of a second turn takes, beside that of the first.

    python -m experiments.benchmarks.second_turn --layout=gemma3

A chat of --tokens tokens is answered, and then a message of 24 more: its prompt
begins with all that was run before, so that only its own tokens run, also where
layers have windows. Random weights; the model's shape decides the times.
"""

from collections.abc import Sequence
import statistics
import time

from absl import flags

from kaiju_jax.runs import command

# The layouts of six layers: all see everything; five windows of 512 to one that
# sees everything, as in Gemma 3.
_LAYOUTS = {
  'global': 'G0 G1 G2 G3 G4 G5',
  'gemma3': 'L0 L1 L2 L3 L4 G5',
}
_ADDED, _DRAWN = 24, 32
_LAYOUT = flags.DEFINE_enum('layout', 'gemma3', list(_LAYOUTS), 'Which layers.')
_TOKENS = flags.DEFINE_integer('tokens', 2048, 'Of the first prompt.', 16)
_RUNS = flags.DEFINE_integer('runs', 5, 'That count, each of another text.', 1)


def main(argv: Sequence[str]) -> None:
  command.check(argv)
  firsts, seconds, reused = [], [], []
  generator, vocab_size = _generator()
  for run in range(_RUNS.value + 1):
    found = _turns(generator, vocab_size, run)
    if run:  # The first one warms up.
      firsts.append(found[0])
      seconds.append(found[1])
      reused.append(found[2])
  ratios = [b / a for a, b in zip(firsts, seconds)]
  print(
    f'{_LAYOUT.value}: first token of {_TOKENS.value:,} tokens after'
    f' {statistics.median(firsts):.3f} s; of the next turn, {_ADDED} tokens'
    f' more, after {statistics.median(seconds):.3f} s:'
    f' {statistics.median(ratios):.3f} of it ({min(ratios):.3f} to'
    f' {max(ratios):.3f}); {min(reused):,} tokens reused.'
  )


def _generator():
  from kaiju_jax.data import tokenizer
  from kaiju_jax.decoding.device import decoder as decoder_lib
  from kaiju_jax.decoding.engine import generator as generator_lib
  from kaiju_jax.model import config as model_config
  from kaiju_jax.model import transformer
  from kaiju_jax.quantization import config as quantization_config
  from kaiju_jax.training import state

  config = model_config.ModelConfig(
    layout=_LAYOUTS[_LAYOUT.value],
    d_model=512,
    num_heads=4,
    num_kv_heads=1,
    head_dim=128,
    d_ff=2048,
    window=512,
    max_length=4096,
    dtype='float32',
    quantization=quantization_config.for_serving(),
  )
  params = state.draw_params(transformer.Transformer(config), 0)
  length = _TOKENS.value + 2 * _DRAWN + _ADDED
  decoder = decoder_lib.Decoder(params, config, rows=1, length=length)
  made = generator_lib.Generator(decoder, tokenizer.Bytes(), 256)
  made.warm([_TOKENS.value])
  return made, 256


def _turns(generator, vocab_size: int, seed: int) -> tuple[float, float, int]:
  """Returns both turns' seconds to the first token, and the reused tokens."""
  import numpy as np

  from kaiju_jax.decoding.requests import request
  from kaiju_jax.decoding.requests import sampling

  rng = np.random.default_rng(seed)
  conversation = generator.converse()
  found = []
  for count in _TOKENS.value, _ADDED:
    tokens = rng.integers(1, vocab_size, count, dtype=np.int32)
    turn = request.Request(tokens, _DRAWN, sampling.Sampling(temperature=0))
    begun = time.perf_counter()
    with conversation.stream(turn) as stream:
      next(stream)
      found.append(time.perf_counter() - begun)
      for _ in stream:
        pass
      reused = stream.result.reused
  conversation.close()
  return found[0], found[1], reused


if __name__ == '__main__':
  command.run(main)
