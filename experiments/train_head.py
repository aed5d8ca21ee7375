"""Train a token-level head on labels, and certify its thresholds.

    python -m experiments.train_head --model=runs/chat \\
      --data=labelled.jsonl --safety=runs/safety --out=runs/moderated
    python -m experiments.serve --model=runs/chat --safety=runs/moderated

Reads texts that are labelled as experiments.train_gate reads them, and the gate
that it wrote into --safety; --head certifies a head that exists. The new folder
is another --safety, with the head and both stages' thresholds. Certified is
that 99 % of violating texts are blocked as a prompt and as a reply, and that
1 % of benign ones are refused in either at most, per tier and dimension. It
takes 368 texts of each kind. The exit status is 0, 3 if the counts say no, or 4
if they are too few. Needs scikit-learn (extra `gate`).

Where labels are spans, a run trains the head, and with --joint the model too:

    python -m experiments.train_head --model=runs/chat --spans=spans.jsonl \\
      --joint=1 --out=runs/chat_head
"""

from collections.abc import Sequence
import dataclasses

from kaiju_jax.classifiers import settings as settings_lib
from kaiju_jax.runs import command
from kaiju_jax.runs import flags
from kaiju_jax.runs import play


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings(play.Spread):
  # A workdir, an export or a Hugging Face folder.
  model: str
  # A new folder; with --spans, a run's workdir.
  out: str
  # Folder of a gate and its certified thresholds.
  safety: str | None = None
  # A head to certify: its file, or the workdir of its run.
  head: str | None = None
  # Of the claims; must be that of --safety's thresholds, the default.
  confidence: float | None = None
  texts: settings_lib.Texts
  spans: settings_lib.Spans


FLAGS = flags.flags_of(Settings)


def main(argv: Sequence[str]) -> None:
  settings = FLAGS.read(argv)
  if settings.spans.spans is not None:
    return _train_on_spans(settings)
  flags.need(safety=settings.safety)
  settings.texts.check()
  from kaiju_jax.classifiers import certificate
  from kaiju_jax.classifiers import examine

  named = settings.model, settings.safety, settings.out, settings.texts
  result = examine.certify_head(
    *named, settings.head, settings.confidence, settings
  )
  certificate.finish(settings.out, 'token head', result.version, result.outcome)


def _train_on_spans(settings: Settings) -> None:
  served = (x.name for x in dataclasses.fields(play.Spread))
  FLAGS.refuse_beside('spans', 'safety', 'head', 'data', 'planted', *served)
  from kaiju_jax.classifiers import span_head

  measured = span_head.train_on(
    settings.spans, settings.model, settings.out, settings.texts.division.seed
  )
  if measured is not None:
    print(span_head.page(measured).markdown())


if __name__ == '__main__':
  command.run(main, ImportError, RuntimeError)
