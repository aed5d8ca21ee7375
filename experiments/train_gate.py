"""Trains the gate before the model, and certifies its thresholds.

    python -m experiments.train_gate --data=labelled.jsonl --out=safety/2026-11

reads texts that are labelled along the dimensions that the gate shall score,

    {"text": "…", "labels": {"violence": true, "self_harm": false}}

where "age": "adult" or "minor" says for which tier a row speaks (both by
default), and writes a new folder, which the server takes as --safety:

    gate.safetensors   the gate
    thresholds.json    thresholds by age tier, with the counts that certify them
    report.md          counts, exact bounds, and what passes in disguise

Part of the texts trains, part chooses the thresholds, and part counts what they
do. Certified is that 99 % of violating texts are blocked and that 1 % of benign
ones are refused at most, per tier and dimension, with 95 % confidence for both
tiers. That takes at least 368 texts of each kind in the part that counts. The
exit status is 0 if it is, 3 if the counts say no, and 4 if they are too few to
say anything; then there is no thresholds.json.

--planted trains on benign texts with planted, meaningless marker words instead
of a file, in seconds. It needs scikit-learn: pip install 'kaiju_jax[gate]'.
"""

from collections.abc import Sequence
import sys

from absl import app
from absl import flags

from kaiju_jax.runs import command

_DATA = flags.DEFINE_string('data', None, 'Labelled texts, a JSONL file.')
_PLANTED = flags.DEFINE_bool(
  'planted', False, 'Make texts with planted marker words.'
)
_OUT = flags.DEFINE_string('out', None, 'A new folder.')
_CHOOSE = flags.DEFINE_float(
  'choose', 0.2, 'The part of the texts that chooses the thresholds.'
)
_CERTIFY = flags.DEFINE_float(
  'certify', 0.4, 'The part of the texts that counts what they do.'
)
_C = flags.DEFINE_float(
  'c', 1.0, "Inverse of the regularization's strength, above 0."
)
_CONFIDENCE = flags.DEFINE_float(
  'confidence', 0.95, 'Of the claims about both tiers; at least 0.95.'
)
_HOLD = flags.DEFINE_integer(
  'hold', 8, 'Tokens of a reply that are held back at most.', 0, 64
)
_HEAD = flags.DEFINE_string(
  'head', None, "A thresholds.json whose token head's part is taken over."
)
_SEED = flags.DEFINE_integer(
  'seed', 0, 'Seed of the split and of the disguises.', lower_bound=0
)


def main(argv: Sequence[str]) -> None:
  command.check(argv, _OUT)
  if bool(_DATA.value) == _PLANTED.value:
    raise app.UsageError('either --data or --planted must be given.')
  result = _train()
  print(f'{_OUT.value}: gate {result.gate.version[:12]}; see report.md.')
  if result.outcome.status:
    print(f'Not certified: {result.outcome.why}', file=sys.stderr)
    raise SystemExit(result.outcome.status)


def _train():
  _check()
  from kaiju_jax.runs.corpora import read
  from kaiju_jax.runs.safety import planted
  from kaiju_jax.runs.safety import report
  from kaiju_jax.runs.safety import rows as rows_lib
  from kaiju_jax.runs.safety import train_gate
  from kaiju_jax.serving.safety import thresholds

  read.refuse_existing(_OUT.value)
  head = thresholds.load(_HEAD.value).head if _HEAD.value else None
  task = train_gate.Task(
    choose=_CHOOSE.value,
    certify=_CERTIFY.value,
    seed=_SEED.value,
    c=_C.value,
    confidence=_CONFIDENCE.value,
    hold=_HOLD.value,
    head=head,
  )
  rows = (
    planted.certifying(_SEED.value)
    if _PLANTED.value
    else rows_lib.read(_DATA.value)
  )
  result = train_gate.train(rows, task)
  train_gate.write(result, _OUT.value, report.of_gate(result))
  return result


def _check() -> None:
  if _C.value <= 0:
    raise ValueError(f'--c={_C.value}: must be above 0.')
  if not 0.95 <= _CONFIDENCE.value < 1:
    raise ValueError(
      f'--confidence={_CONFIDENCE.value}: must be at least 0.95, and below 1.'
    )


if __name__ == '__main__':
  command.run(main, ImportError)
