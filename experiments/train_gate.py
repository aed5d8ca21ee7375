"""Train the gate before the model, and certify its thresholds.

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
import dataclasses
from typing import Annotated

from kaiju_jax.classifiers import settings as settings_lib
from kaiju_jax.runs import command
from kaiju_jax.runs import flags


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
  texts: settings_lib.Texts
  # A new folder.
  out: str
  # Of the claims about both tiers; at least 0.95.
  confidence: flags.Confidence = 0.95
  # Tokens of a reply that are held back at most.
  hold: Annotated[int, flags.Bounds(0, 64)] = 8
  # A thresholds.json whose token head's part is taken over.
  head: str | None = None


FLAGS = flags.flags_of(Settings)


def main(argv: Sequence[str]) -> None:
  settings = FLAGS.read(argv)
  settings.texts.check()
  from kaiju_jax.classifiers import certificate
  from kaiju_jax.classifiers import train_gate
  from kaiju_jax.serving.safety import thresholds
  from kaiju_jax.storage import folders

  folders.refuse_existing(settings.out)
  training = train_gate.Settings(
    division=settings.texts.division,
    confidence=settings.confidence,
    hold=settings.hold,
    head=thresholds.load(settings.head).head if settings.head else None,
  )
  result = train_gate.train(settings.texts.read(), training)
  train_gate.write(result, settings.out)
  certificate.finish(settings.out, 'gate', result.gate.version, result.outcome)


if __name__ == '__main__':
  command.run(main, ImportError)
