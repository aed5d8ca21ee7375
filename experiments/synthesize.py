"""Draw question-answer variations of passages, as trees for training.

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

from kaiju_jax.experiments.studies import settings as settings_lib
from kaiju_jax.runs import command
from kaiju_jax.runs import flags

FLAGS = flags.flags_of(settings_lib.Synthesize)


def main(argv: Sequence[str]) -> None:
  settings = FLAGS.read(argv)
  asked = settings.asked
  from kaiju_jax.experiments.studies import synthesize
  from kaiju_jax.training import progress

  loaded = settings.player.load(settings.model, settings.tokenizer)
  with progress.Progress('passages') as bar:
    report = synthesize.synthesize(
      loaded,
      settings.documents,
      settings.out,
      asked,
      settings.rows,
      settings.evaluation,
      lambda done, total: bar.update(done, total=total),
      settings.player,
    )
  print(f'{settings.out}: {report.describe()}')


if __name__ == '__main__':
  command.run(main)
