"""How many steps does a model follow, with so many global layers?

Variables are defined by values or by other variables, in chains; the model is
asked for the value of a chain's last variable (`kaiju_jax/tasks/recall/`). Each
step takes a lookup at any distance, and the lookups of one answer stand in
layers one above the other. Four layers (d 128, 4 query heads of 64 on one head
of keys and values, window 4), no int8, trained alike:

    full      G0 G1 G2 G3
    global_3  L0 G1 G2 G3
    global_2  L0 L1 G2 G3
    global_1  L0 L1 L2 G3
    local     L0 L1 L2 L3

    python -m experiments.recall --seeds=0,1,2

They start from an initialization that suggests induction, like the needle's:
what is under test is how lookups add up, and not how they emerge.

Device:   one core of a CPU that had much other work
Minutes:  three processor minutes per run
Result:   at 64 tokens `full` and `global_3` follow three hops (98 %),
          `global_2` two (99 %), and `global_1` none: it hardly learns the
          lookup itself (experiments/results/gates.md)
"""

from kaiju_jax.data import config as data_config
from kaiju_jax.model import config as model_config
from kaiju_jax.quantization import config as quantization_config
from kaiju_jax.training import config as training_config
from kaiju_jax.training import experiment as experiment_lib

LAYOUTS = {
  'full': 'G0 G1 G2 G3',
  'global_3': 'L0 G1 G2 G3',
  'global_2': 'L0 L1 G2 G3',
  'global_1': 'L0 L1 L2 G3',
  'local': 'L0 L1 L2 L3',
}
ARMS = tuple(LAYOUTS)


def get_config(arm: str = 'full') -> experiment_lib.Experiment:
  """Returns an arm's experiment.

  Args:
    arm: one of ARMS.

  Raises:
    ValueError: no such arm; the message lists them.
  """
  experiment_lib.check_arm(arm, ARMS)
  experiment = experiment_lib.Experiment(
    model=model_config.ModelConfig(
      vocab_size=256,
      d_model=128,
      layout=LAYOUTS[arm],
      num_heads=4,
      head_dim=64,
      d_ff=256,
      max_length=128,
      window=4,
      dtype='float32',
      quantization=quantization_config.none(),
    ),
    data=data_config.DataConfig(task='recall', length=64, batch=16),
    optimizer=training_config.OptimizerConfig(learning_rate=1e-3),
    loop=training_config.LoopConfig(steps=800, checkpoint_every=800),
    init='induction',
  )
  experiment.optimizer.z_reg.attention = 0.0
  experiment.optimizer.z_reg.logits = 0.0
  return experiment
