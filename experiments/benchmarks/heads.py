"""Does a token-level head recognize violations of which there are very few?

    python -m experiments.benchmarks.heads --out=runs/heads [--arms=balanced]

A small model of bytes learns texts of a sentence, and a head beside it (joint
training). A marker of three dimensions stands in 20 %, 2 % and .2 % of the
texts, and a word that looks like one in most. Half of the texts are held out,
and the table is of those. Arms:

    balanced   labels weigh as `data/spans.py` says
    root       labels weigh by the root of that
    equal      all labels weigh the same, so that the loss is one mean over all
               tokens and dimensions
    shuffled   as balanced, with spans at places that are drawn among all
               characters of all texts

The first two should reach an AUROC of at least .98 in each dimension, with a
delay of at most 2 tokens (here bytes), and the last an AUROC of .5.
"""

from collections.abc import Sequence
import pathlib

from absl import flags

from kaiju_jax.data import config as data_config
from kaiju_jax.model import config as model_config
from kaiju_jax.objectives import config as objective_config
from kaiju_jax.quantization import config as quantization_config
from kaiju_jax.runs import command
from kaiju_jax.training import config as training_config
from kaiju_jax.training import experiment as experiment_lib

ARMS = 'balanced', 'root', 'equal', 'shuffled'
_OUT = flags.DEFINE_string('out', None, 'A folder for texts and runs.')
_ARMS = flags.DEFINE_list('arms', None, 'Which of ARMS; all by default.')
_TEXTS = flags.DEFINE_integer('texts', 12_000, 'Texts, all together.', 1000)
_STEPS = flags.DEFINE_integer('steps', 500, 'Steps of a run.', 1)
_SEED = flags.DEFINE_integer('seed', 0, 'Seed of texts and runs.', 0)


def main(argv: Sequence[str]) -> None:
  command.check(argv, _OUT)
  arms = command.choose(_ARMS, ARMS)
  from kaiju_jax.classifiers import planted_spans
  from kaiju_jax.classifiers import span_head
  from kaiju_jax.storage import files

  out = pathlib.Path(_OUT.value)
  out.mkdir(parents=True, exist_ok=True)
  found = list(planted_spans.texts(_TEXTS.value, _SEED.value))
  files.write_json_lines(out / 'planted.jsonl', found)
  shuffled = planted_spans.shuffle(found, _SEED.value)
  files.write_json_lines(out / 'shuffled.jsonl', shuffled)
  for arm in arms:
    measured = span_head.train(_experiment(out, arm), out / arm)
    if measured is None:
      return
    print(f'{arm}\n', *span_head.report(measured), '', sep='\n')


def _experiment(out: pathlib.Path, arm: str) -> experiment_lib.Experiment:
  from kaiju_jax.classifiers import planted_spans

  head = objective_config.TokenHeadTraining(tuple(planted_spans.RATES))
  name = 'shuffled' if arm == 'shuffled' else 'planted'
  return experiment_lib.Experiment(
    model=model_config.ModelConfig(
      vocab_size=256,
      d_model=32,
      layout='L0 L1',
      num_heads=2,
      head_dim=16,
      d_ff=64,
      max_length=256,
      window=16,
      dtype='float32',
      quantization=quantization_config.none(),
    ),
    data=data_config.DataConfig(
      task='spans',
      path=str(out / f'{name}.jsonl'),
      length=256,
      batch=16,
      held_out=0.5,
      label_weights='balanced' if arm == 'shuffled' else arm,
      span_tokens='last',
    ),
    objective=objective_config.ObjectiveConfig('token_head', head),
    optimizer=training_config.OptimizerConfig(learning_rate=3e-3),
    loop=training_config.LoopConfig(
      steps=_STEPS.value, checkpoint_every=_STEPS.value
    ),
    seed=_SEED.value,
  )


if __name__ == '__main__':
  command.run(main)
