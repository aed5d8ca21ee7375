"""Improve a model in rounds: it draws replies, a user chooses, it learns.

    python -m experiments.align --model=runs/sft --prompts=dialogues:1200 \\
        --user=planted:fact --out=runs/align
    python -m experiments.align --model=runs/sft --user=log:runs/feedback \\
        --rounds=1 --out=runs/align

A round draws --swipes replies to --groups prompts; the user keeps one of each;
the model trains on the choices (the objective 'preference', towards the frozen
int8 export of --model), and its replies to held-out prompts are read. Guards
stop at the last good round: KL per reply, length of replies, the share of them
that never end, and accuracy on held-out choices. OUT/model is a link to that
round's run, OUT/report.json has all readings. The same command goes on where it
was stopped, and one with more --rounds where that one ended. Several users or
--seeds are a run each, in a folder of its own in OUT; they compile once.

--user=planted:NAME chooses by a known utility (fact, question, catchphrase);
:inverted, :coin and :length behind it are contrasts. --user=head:FILE:DIMENSION
chooses by a token-level head of --model (experiments.train_head), a file or its
run's workdir. --user=log:FOLDER takes the choices that people made
(experiments.feedback); nothing is drawn then.

With --rank, adapters train beside the int8 codes of --model, which may then be
an export or a Hugging Face folder as well, and is itself the reference.

A run with the objective 'preference' (experiments/configs/preference.py) on
choices of one's own reads a frozen model's log-probabilities of them:

    python -m experiments.align --model=runs/sft --data=swipes.jsonl \\
        --reference=reference.npz

Result:   experiments/results/alignment.md
"""

from collections.abc import Sequence

from kaiju_jax.experiments.studies import settings as settings_lib
from kaiju_jax.runs import command
from kaiju_jax.runs import flags

FLAGS = flags.flags_of(settings_lib.Align)


def main(argv: Sequence[str]) -> None:
  settings = FLAGS.read(argv)
  from kaiju_jax.experiments.studies import align

  if settings.reference:
    print(align.write_reference(settings))
  else:
    align.run(settings)


if __name__ == '__main__':
  command.run(main)
