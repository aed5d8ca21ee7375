"""Reads a Hugging Face folder into our own format.

    python -m experiments.import_hf --model=exports/tiny --out=imports/a
    python -m experiments.generate --model=imports/a --prompt='def '

Llama 2 and 3, SmolLM, Mistral, Qwen 2, 2.5 and 3, Gemma 3 (text), OLMo 2 and 3,
and Arcee are read; any other is refused by the field that says so. Weights come
from model.safetensors or several files with an index, and are kept in float32;
with --codes, as the int8 codes of experiments.serve, which are read faster.

    python -m experiments.import_hf --check=FOLDER --text=FILE

writes nothing: it compares our logits with transformers', where that is
installed, and prints the perplexity of a text for each --int8 and --kv of
experiments.serve.
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
_CODES = flags.DEFINE_bool(
  'codes',
  False,
  'Keep int8 codes, for experiments.serve --int8=all or weights, instead of'
  ' float32 weights.',
)
_OUT = flags.DEFINE_string('out', None, 'A new folder.')


_CHECK = flags.DEFINE_string(
  'check', '', 'A Hugging Face folder to compare, instead of an import.'
)
_TEXT = flags.DEFINE_string(
  'text',
  '',
  "File of the text whose perplexity is measured; Python's documentation by"
  ' default.',
)


def main(argv: Sequence[str]) -> None:
  command.check(argv, *(() if _CHECK.value else (_MODEL, _OUT)))
  if _CHECK.value:
    import pathlib

    from kaiju_jax.experiments.studies import check_folder

    text = pathlib.Path(_TEXT.value).read_text() if _TEXT.value else None
    print(check_folder.check(_CHECK.value, text))
    return
  from kaiju_jax.runs import exchange  # Imports jax: not for --help.

  print(
    exchange.read(
      _MODEL.value,
      _OUT.value,
      _TOKENIZER.value,
      codes=_CODES.value,
    )
  )


if __name__ == '__main__':
  command.run(main)
