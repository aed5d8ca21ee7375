"""Writes a frozen model's log-probabilities of replies, for preferences.

    python -m experiments.reference --model=runs/sft --data=swipes.jsonl \\
        --out=reference.npz

reads conversations with choices (kaiju_jax/data/conversations.py) with the
model, a workdir, an export or a Hugging Face folder. A run with the objective
'preference' reads the file (experiments/configs/preference.py). The same
command again reads only conversations that are new.
"""

from collections.abc import Sequence

from absl import flags

from kaiju_jax.runs import command

_MODEL = flags.DEFINE_string(
  'model', None, 'A workdir, an export or a Hugging Face folder.'
)
_DATA = flags.DEFINE_string(
  'data', None, 'Conversations with choices: a .jsonl file, folder or glob.'
)
_OUT = flags.DEFINE_string('out', None, 'The file of the log-probabilities.')
_LENGTH = flags.DEFINE_integer(
  'length', 1024, 'Tokens per row; a tree must fit.', lower_bound=2
)
_BATCH = flags.DEFINE_integer(
  'batch', 2, 'Rows that the model reads at a time.', lower_bound=1
)


def main(argv: Sequence[str]) -> None:
  command.check(argv, _MODEL, _DATA, _OUT)
  _write()


def _write() -> None:
  from kaiju_jax.runs import load
  from kaiju_jax.runs import reference

  loaded = load.from_anywhere(_MODEL.value)
  total, fresh = reference.write(
    loaded, _DATA.value, _OUT.value, _LENGTH.value, _BATCH.value
  )
  print(
    f'{_OUT.value}: {total:,} conversations with a choice, {fresh:,} of them'
    f' read now with {loaded.origin}.'
  )


if __name__ == '__main__':
  command.run(main)
