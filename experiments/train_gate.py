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

from absl import flags

from kaiju_jax.classifiers import certifying
from kaiju_jax.runs import command

_TEXTS = certifying.define('Seed of the split and of the disguises.')
_OUT = flags.DEFINE_string('out', None, 'A new folder.')
_CONFIDENCE = flags.DEFINE_float(
  'confidence', 0.95, 'Of the claims about both tiers; at least 0.95.'
)
_HOLD = flags.DEFINE_integer(
  'hold', 8, 'Tokens of a reply that are held back at most.', 0, 64
)
_HEAD = flags.DEFINE_string(
  'head', None, "A thresholds.json whose token head's part is taken over."
)


def main(argv: Sequence[str]) -> None:
  command.check(argv, _OUT)
  _TEXTS.check()
  if not 0.95 <= _CONFIDENCE.value < 1:
    raise ValueError(
      f'--confidence={_CONFIDENCE.value}: must be at least 0.95, and below 1.'
    )
  from kaiju_jax.classifiers import report
  from kaiju_jax.classifiers import train_gate
  from kaiju_jax.serving.safety import thresholds
  from kaiju_jax.storage import folders

  folders.refuse_existing(_OUT.value)
  training = train_gate.Settings(
    confidence=_CONFIDENCE.value,
    hold=_HOLD.value,
    head=thresholds.load(_HEAD.value).head if _HEAD.value else None,
    **_TEXTS.division,
  )
  result = train_gate.train(_TEXTS.read(), training)
  train_gate.write(result, _OUT.value, report.report_gate(result))
  certifying.finish(_OUT.value, 'gate', result.gate.version, result.outcome)


if __name__ == '__main__':
  command.run(main, ImportError)
