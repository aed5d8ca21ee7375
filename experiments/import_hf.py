"""Reads a Hugging Face folder of the Arcee class into our own format.

    python -m experiments.import_hf --folder=exports/tiny --out=imports/tiny

For models with one head of keys and values, and no biases or scaled rotary
angles; any other is refused by the field that says so. Weights come from
model.safetensors or several files with an index, and are kept in float32.
"""

from collections.abc import Sequence
import pathlib

from absl import app
from absl import flags

from experiments import run

_FOLDER = flags.DEFINE_string('folder', None, 'With config.json and weights.')
_OUT = flags.DEFINE_string('out', None, 'A new folder.')


def main(argv: Sequence[str]) -> None:
  if len(argv) > 1:
    raise app.UsageError(f'unexpected arguments: {" ".join(argv[1:])}')
  for flag in _FOLDER, _OUT:
    if not flag.value:
      raise app.UsageError(f'--{flag.name} is missing.')
  run.quiet()
  try:
    _import()
  except (OSError, ValueError) as error:
    raise SystemExit(f'error: {error}') from error


def _import() -> None:
  # These import jax, which costs seconds that --help should not.
  import jax

  from kaiju_jax.interchange import hugging_face
  from kaiju_jax.interchange import own
  from kaiju_jax.interchange import tokens

  params, config = hugging_face.read(_FOLDER.value)
  tokenizer = pathlib.Path(_FOLDER.value) / tokens.FILE
  own.write(
    _OUT.value,
    params,
    config,
    str(tokenizer) if tokenizer.exists() else None,
  )
  count = sum(leaf.size for leaf in jax.tree.leaves(params))
  print(
    f'{_FOLDER.value} → {_OUT.value}: {config.num_layers} layers of width'
    f' {config.d_model}, {count:,} parameters,'
    f' {"a" if tokenizer.exists() else "no"} tokenizer.'
  )


if __name__ == '__main__':
  app.run(main, flags_parser=run.parse)
