"""Reads a Hugging Face folder into our own format.

    python -m experiments.import_hf --model=exports/tiny --out=imports/a
    python -m experiments.generate --model=imports/a --prompt='def '

Llama 2 and 3, SmolLM, Mistral, Qwen 2, 2.5 and 3, Gemma 3 (text), OLMo 2 and 3,
and Arcee are read; any other is refused by the field that says so. Weights come
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
_ACCEPTED = flags.DEFINE_list(
  'accept_field',
  [],
  'Unknown fields of config.json to ignore, by dotted name; they may change'
  ' what the model computes.',
)
_OUT = flags.DEFINE_string('out', None, 'A new folder.')


def main(argv: Sequence[str]) -> None:
  command.check(argv, _MODEL, _OUT)
  from kaiju_jax.runs import exchange  # Imports jax: not for --help.

  print(
    exchange.read(_MODEL.value, _OUT.value, _TOKENIZER.value, _ACCEPTED.value)
  )


if __name__ == '__main__':
  command.run(main)
