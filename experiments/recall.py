"""Ask trained or served models for several keys, chains and counts.

    python -m experiments.recall [--arms=full,global_1] [--seeds=0,1,2]
    python -m experiments.recall --model=runs/chat --lengths=32,64
    python -m experiments.recall --endpoint=http://127.0.0.1:8000/v1

The kinds are RULER's (Hsieh et al. 2024); the generators are ours.

Without a model, it trains each arm (one layout) of `experiments/configs/
recall.py` on each seed in <out>/<arm>/seed<S>, and asks how many steps of a
chain each layout follows. A number of steps counts only where full attention of
equal depth has 95 % right on every seed. Otherwise it is not evaluated, and the
exit status is 4. It writes recall.png, report.md and decision.json into the
folder. The same command goes on where it was stopped.

With --model (a workdir, an export or a Hugging Face folder; one that does not
chat continues the question and "Answer:") or --endpoint (a server with OpenAI's
chat completions; its key is in OPENAI_API_KEY), the same rows are asked in
English:

    --kinds      all by default
    --lengths    tokens of the rows before they are translated; one of filler
                 becomes a sentence of five words
    --least      the share of right answers that each kind must be shown to
                 have: exit status 3 if not, and 4 without it
"""

from collections.abc import Sequence

from kaiju_jax.experiments.studies import settings as settings_lib
from kaiju_jax.runs import command
from kaiju_jax.runs import flags

_OF_RUNS = (
  *('arms', 'seeds', 'report', 'jobs', 'devices_per_job', 'launch', 'dry_run'),
)
FLAGS = flags.flags_of(settings_lib.Recall)


def main(argv: Sequence[str]) -> None:
  settings = FLAGS.read(argv)
  for ruler in 'model', 'endpoint':
    FLAGS.refuse_beside(ruler, *_OF_RUNS)
  from kaiju_jax.experiments.studies import recall

  if settings.responder.model or settings.responder.endpoint:
    recall.ask_served(settings)
  else:
    recall.ask_trained(settings)


if __name__ == '__main__':
  command.run(main, ImportError, RuntimeError)
