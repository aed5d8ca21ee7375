"""Does Kaiju's attention still find a needle wherever it lies?

Four arms (layouts) of one model (7 layers, d 128, 4 query heads of 64 on one
head of keys and values, window 16), trained alike on the synthetic task of
`kaiju_jax/tasks/needle/questions.py`:

    full         G0 G1 G2 G3 G4 G5 G6    full attention, no int8
    interleaved  L0 L1 L2 L3 L4 L5 G6    6:1
    kaiju        L0 L0 L0 L3 L3 L3 G6    6:1, keys and values shared in threes,
                                         int8 with QAT, int8 KV, int8 QK,
                                         dynamic clamping, Attention Z-Reg
    local        L0 L1 L2 L3 L4 L5 L6    plain sliding windows, no int8

    python -m experiments.needle --seeds=0,1,2

Device:   4 shared cores of a CPU
Minutes:  11 for four arms on three seeds, installation included
Result:   at 256 tokens with 8 distractors full 99.7 %, interleaved 99.6 %,
          kaiju 99.7 %, local 18.1 %; beyond the 105 tokens that windows reach
          99.7, 99.4, 99.5 and 0.5 % (experiments/results/needle.md).

They start from an initialization that suggests induction, because the test is
about reach. From the standard initialization, with a longer curriculum:

    python -m experiments.needle \\
      --arms=full_standard,interleaved_standard,kaiju_standard

Device:   4 shared cores of a CPU
Minutes:  four per arm
Result:   full 99.7 %, interleaved 99.9 %, kaiju 10.4 % at 256 tokens: layer 1
          reads the keys of layer 0. `shifted_standard`, in which the first
          layer shares with none, 100, 23 and 93 % on three seeds in 1.5 times
          the steps;
          `kaiju_previous`, with previous-token heads suggested, 21 %
          (experiments/results/induction.md).
"""

from kaiju_jax.data import config as data_config
from kaiju_jax.model import config as model_config
from kaiju_jax.quantization import config as quantization_config
from kaiju_jax.training import config as training_config
from kaiju_jax.training import experiment as experiment_lib

ARMS = ('full', 'interleaved', 'kaiju', 'local')
VARIANTS = (
  *(f'{arm}_standard' for arm in ARMS),
  'shifted_standard',
  'kaiju_previous',
  'shifted_previous',
  'interleaved_sink1',
  'interleaved_sink4',
  'interleaved_logit',
)
# Kaiju's runs of three, begun one layer later.
SHIFTED = 'L0 L1 L1 L1 L4 L4 G6'


def get_config(arm: str = 'kaiju') -> experiment_lib.Experiment:
  """Returns an arm's experiment.

  Args:
    arm: one of ARMS or VARIANTS; `_standard` is the standard initialization,
      `_previous` the same with previous-token heads suggested; `_sink1`,
      `_sink4` and `_logit` have attention sinks or learned sink logits.

  Raises:
    ValueError: no such arm; the message lists them.
  """
  experiment_lib.check_arm(arm, ARMS + VARIANTS)
  base, _, variant = arm.partition('_')
  experiment = experiment_lib.Experiment(
    model=model_config.ModelConfig(
      vocab_size=256,
      d_model=128,
      num_layers=7,
      num_heads=4,
      head_dim=64,
      d_ff=256,
      max_length=512,
      window=16,
      dtype='float32',
    ),
    data=data_config.DataConfig(task='needle', length=256, batch=4),
    optimizer=training_config.OptimizerConfig(learning_rate=1e-3),
    loop=training_config.LoopConfig(steps=400, checkpoint_every=400),
    init='induction',
  )
  dress(experiment, base)
  if variant.startswith('sink'):
    experiment.model.sinks = int(variant.removeprefix('sink'))
  elif variant == 'logit':
    experiment.model.sink_logit = True
  elif variant:
    experiment.init = variant
    experiment.optimizer.schedule = 'wsd'
    experiment.loop.steps = 2450
    experiment.loop.checkpoint_every = 500
  return experiment


def dress(experiment: experiment_lib.Experiment, arm: str) -> None:
  """Gives a Kaiju experiment the layers and the techniques of one of ARMS."""
  model = experiment.model
  if arm == 'shifted':
    model.layout = SHIFTED
  if arm in ('kaiju', 'shifted'):
    return
  model.local_share = model.global_share = 1
  model.period = {'full': 1, 'interleaved': 7, 'local': 0}[arm]
  model.quantization = quantization_config.none()
  experiment.optimizer.z_reg.attention = 0.0
  experiment.optimizer.z_reg.logits = 0.0
