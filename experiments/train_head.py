"""Trains a token-level head on labels, and certifies its thresholds.

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

Where the labels say which characters are violations, a run trains the head on
them, and with --joint the model as well:

    python -m experiments.train_head --model=runs/chat --spans=spans.jsonl \\
      --joint=1 --out=runs/chat_head
    python -m experiments.train_head --model=runs/chat_head \\
      --head=runs/chat_head --data=labelled.jsonl --safety=runs/safety \\
      --out=runs/moderated

The first --out is the workdir of a run, which the same command resumes: another
model if --joint is given, and the head. Its report.md has AUROC and delays on
texts that were held out. --spans=planted takes chats with planted markers.
"""

from collections.abc import Sequence

from absl import flags

from kaiju_jax.classifiers import certifying
from kaiju_jax.runs import command

_MODEL = flags.DEFINE_string(
  'model', None, 'A workdir, an export or a Hugging Face folder.'
)
_TEXTS = certifying.define('Seed of the split and of drawn tokens.')
_SAFETY = flags.DEFINE_string(
  'safety', None, 'Folder of a gate and its certified thresholds.'
)
_OUT = flags.DEFINE_string('out', None, 'A new folder.')
_HEAD = flags.DEFINE_string(
  'head', None, 'A head to certify: its file, or the workdir of its run.'
)
_SPANS = flags.DEFINE_string(
  'spans', None, "Texts with labelled spans, a JSONL file; or 'planted'."
)
_JOINT = flags.DEFINE_float(
  'joint',
  0.0,
  "With --spans: factor of the head's loss beside the language model's; 0"
  ' trains the head alone.',
  lower_bound=0.0,
)
_STEPS = flags.DEFINE_integer(
  'steps', 1680, 'With --spans: optimizer steps.', lower_bound=1
)
_RATE = flags.DEFINE_float('rate', 1e-3, 'With --spans: peak learning rate.')
_WEIGHTS = flags.DEFINE_enum(
  'label_weights',
  'root',
  ['balanced', 'root', 'equal'],
  'With --spans: how much rare labels weigh (kaiju_jax/data/spans.py).',
)
_CHATS = flags.DEFINE_integer(
  'chats', 1920, 'With --spans=planted: number of chats.', lower_bound=1
)
_PLAIN = flags.DEFINE_float(
  'plain',
  0.5,
  'With --spans=planted: the share of chats without planted texts, which'
  ' practise what the model knew.',
  0.0,
  1.0,
)
_CONFIDENCE = flags.DEFINE_float(
  'confidence',
  None,
  "Of the claims about both tiers; must be that of --safety's thresholds, which"
  ' is the default.',
)


def _train_on_spans() -> None:
  import pathlib

  from kaiju_jax.classifiers import planted_spans
  from kaiju_jax.classifiers import span_head
  from kaiju_jax.data import spans
  from kaiju_jax.storage import files

  path = _SPANS.value
  if path == 'planted':
    path = pathlib.Path(f'{_OUT.value.rstrip("/")}.jsonl')
    path.parent.mkdir(parents=True, exist_ok=True)
    seed = _TEXTS.seed.value
    files.write_json_lines(
      path, planted_spans.chats(_CHATS.value, seed, _PLAIN.value)
    )
  names = spans.list_dimensions(spans.read(str(path), field='--spans'))
  settings = span_head.Settings(
    names=tuple(names),
    joint=_JOINT.value,
    steps=_STEPS.value,
    rate=_RATE.value,
    seed=_TEXTS.seed.value,
    label_weights=_WEIGHTS.value,
  )
  experiment = span_head.make(_MODEL.value, path, settings)
  measured = span_head.train(experiment, _OUT.value)
  if measured is not None:
    print(span_head.page(measured).markdown())


def main(argv: Sequence[str]) -> None:
  if _SPANS.value is not None:
    command.check(argv, _MODEL, _SPANS, _OUT)
    for flag in _SAFETY, _HEAD, _TEXTS.data, _TEXTS.planted:
      if flag.value:
        raise ValueError(
          f'--{flag.name} is for certifying a head, and --spans for training'
          ' one: give them to two commands, as in the help.'
        )
    _train_on_spans()
    return
  command.check(argv, _MODEL, _SAFETY, _OUT)
  _TEXTS.check()
  from kaiju_jax.serving.safety import moderation
  from kaiju_jax.storage import folders

  folders.refuse_existing(_OUT.value)
  gate = moderation.Moderator().load(_SAFETY.value).policy
  if _CONFIDENCE.value not in (None, gate.confidence):
    raise ValueError(
      f'--confidence={_CONFIDENCE.value}: the thresholds in'
      f' --safety={_SAFETY.value} were counted with {gate.confidence}.'
    )
  rows = _TEXTS.read()
  from kaiju_jax.classifiers import heads
  from kaiju_jax.classifiers import hidden_states
  from kaiju_jax.classifiers import report
  from kaiju_jax.classifiers import train_head
  from kaiju_jax.runs import load

  loaded = load.from_anywhere(_MODEL.value)
  d_model = loaded.config.d_model
  # A head of any model of its width: it is certified for this one now.
  head = heads.load(_HEAD.value, d_model) if _HEAD.value else None
  settings = train_head.Settings(head=head, **_TEXTS.division)
  result = train_head.train(hidden_states.Reader(loaded), rows, gate, settings)
  train_head.write(
    result,
    _SAFETY.value,
    _OUT.value,
    report.report_head(result),
    heads.list_digests(_MODEL.value, loaded),
  )
  certifying.finish(_OUT.value, 'token head', result.version, result.outcome)


if __name__ == '__main__':
  command.run(main, ImportError, RuntimeError)
