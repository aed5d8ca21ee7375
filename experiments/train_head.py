"""Trains a token-level head beside a gate, and certifies its thresholds.

    python -m experiments.train_head --model=runs/chat \\
      --data=labelled.jsonl --safety=runs/safety --out=runs/moderated
    python -m experiments.serve --model=runs/chat --safety=runs/moderated

reads texts that are labelled as experiments.train_gate reads them, and a gate
with its thresholds, which that command wrote into --safety. The head scores
every token of prompts and replies by the model's hidden states, and the model
does not change. --head=FILE certifies a head that exists instead of training
one: its file, or the workdir of the run that trained it.

A new folder is written, which the server takes as --safety:

    gate.safetensors   the gate, as it was
    head.safetensors   the head
    thresholds.json    both stages' thresholds, with the head's counts added
    report.md          the gate's report, with the head's behind it

Certified is that each text is scored as a prompt and as a reply, that 99 % of
violating texts are blocked in both places, and that 1 % of benign ones are
refused in either at most, per tier and dimension, with the confidence of the
gate's thresholds. That takes at least 368 texts of each kind in the part that
counts. The exit status is 0 if it is, 3 if the counts say no, and 4 if they are
too few to say anything; then there is no thresholds.json.

--planted takes benign texts with planted, meaningless marker words instead of a
file. It needs scikit-learn: pip install 'kaiju_jax[gate]'.
"""

from collections.abc import Sequence
import sys

from absl import app
from absl import flags

from kaiju_jax.runs import command

_MODEL = flags.DEFINE_string(
  'model', None, 'A workdir, an export or a Hugging Face folder.'
)
_DATA = flags.DEFINE_string('data', None, 'Labelled texts, a JSONL file.')
_PLANTED = flags.DEFINE_bool(
  'planted', False, 'Make texts with planted marker words.'
)
_SAFETY = flags.DEFINE_string(
  'safety', None, 'Folder of a gate and its certified thresholds.'
)
_OUT = flags.DEFINE_string('out', None, 'A new folder.')
_HEAD = flags.DEFINE_string(
  'head', None, 'A head to certify: its file, or the workdir of its run.'
)
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
  'confidence',
  None,
  "Of the claims about both tiers; must be that of --safety's thresholds, which"
  ' is the default.',
)
_SEED = flags.DEFINE_integer(
  'seed', 0, 'Seed of the split and of drawn tokens.', lower_bound=0
)


def main(argv: Sequence[str]) -> None:
  command.check(argv, _MODEL, _SAFETY, _OUT)
  if bool(_DATA.value) == _PLANTED.value:
    raise app.UsageError('either --data or --planted must be given.')
  result = _train()
  print(f'{_OUT.value}: token head {result.version[:12]}; see report.md.')
  if result.outcome.status:
    print(f'Not certified: {result.outcome.why}', file=sys.stderr)
    raise SystemExit(result.outcome.status)


def _train():
  if _C.value <= 0:
    raise ValueError(f'--c={_C.value}: must be above 0.')
  from kaiju_jax.runs.corpora import read
  from kaiju_jax.runs.safety import planted
  from kaiju_jax.runs.safety import rows as rows_lib
  from kaiju_jax.serving.safety import moderation

  read.refuse_existing(_OUT.value)
  gate = moderation.Moderator().load(_SAFETY.value).policy
  if _CONFIDENCE.value not in (None, gate.confidence):
    raise ValueError(
      f'--confidence={_CONFIDENCE.value}: the thresholds in'
      f' --safety={_SAFETY.value} were counted with {gate.confidence}.'
    )
  rows = (
    planted.certifying(_SEED.value)
    if _PLANTED.value
    else rows_lib.read(_DATA.value)
  )
  from kaiju_jax.runs import load
  from kaiju_jax.runs.safety import report
  from kaiju_jax.runs.safety import said
  from kaiju_jax.runs.safety import train_head

  loaded = load.from_anywhere(_MODEL.value)
  d_model = loaded.config.d_model
  task = train_head.Task(
    choose=_CHOOSE.value,
    certify=_CERTIFY.value,
    seed=_SEED.value,
    c=_C.value,
    head=load.head(_HEAD.value, d_model) if _HEAD.value else None,
  )
  result = train_head.train(said.Reader(loaded), rows, gate, task)
  train_head.write(result, _SAFETY.value, _OUT.value, report.of_head(result))
  return result


if __name__ == '__main__':
  command.run(main, ImportError, RuntimeError)
