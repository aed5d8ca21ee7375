"""Is clean data worth more at the end of training?

A small model reads clean text (docstrings) and four times as much noisy text
(docstrings of other modules, half of their words random letters). All arms
read the same clean rows in the same order, the same number of noisy ones, and
decay the learning rate over the last fifth. They differ in when the clean ones
come:

    spread  a fifth of the rows, all the time: the baseline
    last    all of the last fifth of the rows, and none before
    first   all of the first fifth, and none after

Read off `eval_bits_per_byte/clean`: held-out clean text.

    python -m experiments.texts --of=annealing --out=runs/annealing/text
    python -m experiments.ablate --config=annealing \\
      --out=runs/annealing --seeds=0,1,2

The sources say that training ends with an annealing on data of higher quality;
the sizes here are our guess.

Device:   2 shared cores of a CPU
Minutes:  half a minute of processor time per run, nine runs
Result:   bits per byte of held-out clean text, mean of three seeds: last
          3.329, spread 3.461, first 3.574. Noisy text: 4.597, 4.084,
          4.101 (experiments/results/annealing.md).
"""

from kaiju_jax.data import config as data_config
from kaiju_jax.model import config as model_config
from kaiju_jax.quantization import config as quantization_config
from kaiju_jax.training import config as training_config
from kaiju_jax.training import experiment as experiment_lib

# {arm: its baseline}.
ARMS = {'spread': 'spread', 'last': 'spread', 'first': 'spread'}
TEXT = 'runs/annealing/text'
# {arm: clean data's share before and after a place in the run, and the place}.
_CLEAN = {
  'spread': (0.2, 0.2, 1.0),
  'last': (0.0, 1.0, 0.8),
  'first': (1.0, 0.0, 0.2),
}


def get_config(arm: str = 'last') -> experiment_lib.Experiment:
  """Returns an arm's experiment.

  Args:
    arm: one of ARMS.

  Raises:
    ValueError: no such arm.
  """
  experiment_lib.check_arm(arm, ARMS)
  before, after, place = _CLEAN[arm]
  sources = (
    data_config.SourceConfig('clean', f'{TEXT}/clean.jsonl', before, after),
    data_config.SourceConfig(
      'noisy', f'{TEXT}/noisy.jsonl', 1 - before, 1 - after
    ),
  )
  return experiment_lib.Experiment(
    model=model_config.ModelConfig(
      d_model=48,
      num_layers=2,
      num_heads=2,
      head_dim=16,
      d_ff=192,
      max_length=128,
      window=32,
      dtype='float32',
      quantization=quantization_config.none(),
    ),
    data=data_config.DataConfig(
      sources=sources, anneal_at=place, length=128, batch=8, held_out=0.1
    ),
    optimizer=training_config.OptimizerConfig(
      learning_rate=3e-3, schedule='wsd', decay=0.2
    ),
    loop=training_config.LoopConfig(
      steps=500, log_every=10, checkpoint_every=500
    ),
  )
