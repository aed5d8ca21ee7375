"""Draws question-answer variations of passages, as trees for training.

    python -m experiments.synthesize --model=GENERATOR --documents=my/texts \\
        --out=qa.jsonl [--variations=4] [--evaluation=my/evaluation]

The generator reads each passage, asks, answers, answers again, and scores its
answers with and without the passage. So it must know the form of
`kaiju_jax/synthesis/form.py`: from its training text, as the generator that
`experiments.facts` leaves in runs/facts/generator/seed0, or from worked
examples in --header. Filters keep what is grounded in the passage, consistent,
informed by it, new, and absent from the evaluation set.

qa.jsonl has one tree per passage, with the passage once and its variations as
children: name it in `data.path` or in a mix. qa.jsonl.journal has every
variation with its scores and verdict. Ctrl-C keeps what is done; the same
command goes on.
"""

from collections.abc import Sequence

from absl import flags

from kaiju_jax.experiments import shared_flags
from kaiju_jax.runs import command
from kaiju_jax.synthesis import form as form_lib
from kaiju_jax.synthesis import settings as settings_lib

_DEFAULTS = settings_lib.Settings()

_MODEL = flags.DEFINE_string(
  'model', None, 'A workdir, an export or a Hugging Face folder.'
)
_TOKENIZER = flags.DEFINE_string(
  'tokenizer', None, 'tokenizer.json of an exported file; bytes by default.'
)
_PLAYER = shared_flags.define_player()
_DOCUMENTS = flags.DEFINE_string(
  'documents', None, 'File, folder or glob of text; a document is a passage.'
)
_OUT = flags.DEFINE_string('out', None, 'The .jsonl to write; a new file.')
_EVALUATION = flags.DEFINE_string(
  'evaluation',
  '',
  'File, folder or glob of evaluation text; questions that stand in it go.',
)
_VARIATIONS = flags.DEFINE_integer(
  'variations', _DEFAULTS.variations, 'Questions per passage.'
)
_TEMPERATURE = flags.DEFINE_float(
  'temperature', _DEFAULTS.temperature, 'Of questions and first answers.'
)
_TOP_P = flags.DEFINE_float(
  'top_p', _DEFAULTS.top_p, 'Of questions and first answers.'
)
_GAIN = flags.DEFINE_float(
  'gain',
  _DEFAULTS.gain,
  'Least log p(answer | passage, question) − log p(answer | question), nats.',
)
_FILTERS = flags.DEFINE_bool(
  'filters', True, 'Whether variations are filtered, but for their form.'
)
_SEED = flags.DEFINE_integer('seed', 0, 'Seed of the noise.', lower_bound=0)
_ROWS = flags.DEFINE_integer(
  'rows', 16, 'Sequences at once; it changes no text.', lower_bound=1
)
_HEADER = flags.DEFINE_string(
  'header', '', 'Text before each passage, such as worked examples.'
)


def main(argv: Sequence[str]) -> None:
  command.check(argv, _MODEL, _DOCUMENTS, _OUT)
  settings = _settings()
  _run(settings)


def _settings() -> settings_lib.Settings:
  is_filtered = _FILTERS.value
  return settings_lib.Settings(
    variations=_VARIATIONS.value,
    temperature=_TEMPERATURE.value,
    top_p=_TOP_P.value,
    grounded=is_filtered,
    consistent=is_filtered,
    gain=_GAIN.value if is_filtered else -float('inf'),
    overlap=_DEFAULTS.overlap if is_filtered else 1.0,
    seed=_SEED.value,
    form=form_lib.Form(header=_HEADER.value),
  )


def _run(settings: settings_lib.Settings) -> None:
  from kaiju_jax.experiments.studies import synthesize
  from kaiju_jax.training import progress

  played = _PLAYER.read()
  loaded = played.load(_MODEL.value, _TOKENIZER.value)
  with progress.Progress('passages') as bar:
    report = synthesize.synthesize(
      loaded,
      _DOCUMENTS.value,
      _OUT.value,
      settings,
      _ROWS.value,
      _EVALUATION.value,
      lambda done, total: bar.update(done, total=total),
      played,
    )
  _say(report)


def _say(report) -> None:
  total = sum(report.verdicts.values())
  print(f'{_OUT.value}: {report.trees} trees of {report.passages} passages.')
  for verdict, count in sorted(report.verdicts.items(), key=lambda x: -x[1]):
    print(f'  {verdict:11} {count:7} of {total} variations')
  if report.unfit:
    print(
      f'  {len(report.unfit)} documents are trees or too long for the model,'
      f' such as {report.unfit[0]}.'
    )


if __name__ == '__main__':
  command.run(main)
