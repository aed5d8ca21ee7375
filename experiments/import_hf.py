"""Reads a Hugging Face folder of the Arcee class into our own format.

    python -m experiments.import_hf --model=exports/tiny --out=imports/a
    python -m experiments.generate --model=imports/a --prompt='def '

For models without biases or scaled rotary angles; any other is refused by the
field that says so. Any number of heads of keys and values is kept. Weights come
from model.safetensors or several files with an index, and are kept in float32.
"""

from collections.abc import Sequence

from absl import flags

from kaiju_jax.runs import command

_MODEL = flags.DEFINE_string(
  'model', None, 'A Hugging Face folder, with config.json and weights.'
)
_TOKENIZER = flags.DEFINE_bool(
  'tokenizer', True, "Take the folder's tokenizer.json along, if it has one."
)
_OUT = flags.DEFINE_string('out', None, 'A new folder.')


def main(argv: Sequence[str]) -> None:
  command.check(argv, _MODEL, _OUT)
  from kaiju_jax.runs import exchange  # Imports jax: not for --help.

  print(exchange.read(_MODEL.value, _OUT.value, _TOKENIZER.value))


if __name__ == '__main__':
  command.run(main)
