"""Writes a trained run as a Hugging Face folder, or in our own format.

    python -m experiments.export_hf --workdir=runs/tiny --out=exports/tiny
    python -m experiments.export_hf --workdir=runs/tiny --out=exports/tiny \\
        --format=arcee [--accept=windows,shared_kv]

`transformers` loads the folder as ArceeForCausalLM, of all its classes the one
with the nearest mathematics: squared ReLU without a gate, pre-RMSNorm, one head
of keys and values. Logits are the same where that class can say all that the
model does. What it cannot is named (`kaiju_jax/interchange/lost.py`), and then:

    --format=auto    our own format is written instead, which loses nothing
    --format=arcee   an error, but for what --accept names; a lost.json beside
                     the weights says what was lost
    --format=kaiju   our own format in any case

The folder is new, and whole or not there at all.
"""

from collections.abc import Sequence

from absl import app
from absl import flags

from experiments import run

_WORKDIR = flags.DEFINE_string('workdir', None, 'Of a training run.')
_OUT = flags.DEFINE_string('out', None, 'A new folder.')
_FORMAT = flags.DEFINE_enum(
  'format', 'auto', ['auto', 'arcee', 'kaiju'], 'Of the folder; see above.'
)
_ACCEPT = flags.DEFINE_list('accept', [], 'What an Arcee folder may lose.')


def main(argv: Sequence[str]) -> None:
  if len(argv) > 1:
    raise app.UsageError(f'unexpected arguments: {" ".join(argv[1:])}')
  for flag in _WORKDIR, _OUT:
    if not flag.value:
      raise app.UsageError(f'--{flag.name} is missing.')
  run.quiet()
  try:
    _export()
  except (OSError, ValueError) as error:
    raise SystemExit(f'error: {error}') from error


def _export() -> None:
  # These import jax, which costs seconds that --help should not.
  from kaiju_jax.interchange import hugging_face
  from kaiju_jax.interchange import lost as lost_lib
  from kaiju_jax.interchange import own
  from kaiju_jax.training import trained
  from kaiju_jax.training import workdir

  config = workdir.load_experiment(_WORKDIR.value).model
  lost = lost_lib.of(config)
  is_arcee = _FORMAT.value == 'arcee' or (
    _FORMAT.value == 'auto' and (_ACCEPT.value or not lost)
  )
  if is_arcee:
    lost_lib.refuse(lost, _ACCEPT.value)
  found = trained.load(_WORKDIR.value)
  tokenizer = found.experiment.data.tokenizer
  if is_arcee:
    hugging_face.write(
      _OUT.value, found.params, config, tokenizer, _ACCEPT.value, found.replica
    )
  else:
    own.write(_OUT.value, found.params, config, tokenizer, found.replica)
  if lost:
    print('transformers has no counterpart of')
    print(lost_lib.lines(lost))
  where = f'step {found.step:,} of {_WORKDIR.value} → {_OUT.value}'
  if not is_arcee:
    print(f'{where}, in our own format, which loses nothing.')
  elif lost:
    print(f'{where}, an Arcee folder without these: other logits.')
  else:
    print(f'{where}, an Arcee folder with the same logits.')


if __name__ == '__main__':
  app.run(main, flags_parser=run.parse)
