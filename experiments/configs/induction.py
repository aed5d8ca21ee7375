"""What keeps shared keys and values from finding induction?

The model of `needle.py` (7 layers, d 128, window 16) from the standard
initialization, on the first stage of its curriculum alone: documents of 16
tokens, 8 keys, pairs that repeat. A model that guesses among the document's
values stays on a plateau; one that finds induction leaves it. Where an arm
leaves the plateau is all that is measured here. Arms that name a layout are
plain float models, others add or remove one technique:

    full, interleaved   nothing shared
    shared              L0 L0 L0 L3 L3 L3 G6, Kaiju's layout
    first, second       only L0–L2 share, only L3–L5
    twos                L0 L0 L2 L2 L4 L4 G6
    shifted             L0 L1 L1 L1 L4 L4 G6, the first layer by itself
    last_alone          L0 L0 L0 L3 L3 L5 G6, the last local layer by itself
    keys, values        the layout of `shared`, but only the keys are shared, or
                        only the values
    scaled              the layout of `shared`, from an initialization in which
                        layers write little (`model/depth_scaled.py`)
    previous            the layout of `shared`, and head 0 of each layer begins
                        as a previous-token head (`evaluation/induction.py`)
    shallow             L0 L1 G2: as many keys and values as `shared` has, but
                        three layers

    interleaved_int8, interleaved_clamp, interleaved_z    one technique added
    kaiju                                                 all of them
    kaiju_unshared, kaiju_float, kaiju_unclamped, kaiju_no_z   one removed
    kaiju_shifted                         all of them, in the layout `shifted`

    python -m experiments.ablate --config=induction \\
      --out=runs/induction --seeds=0,1,2
    python -m experiments.ablate --out=runs/induction \\
      --reading=eval_answered

Device:   one core of a CPU that had much other work
Minutes:  one to nine per run
Result:   on seed 0 arms learnt whose second layer makes its own keys
          (`interleaved`, `shifted`, `values`, `kaiju_shifted`), and those
          whose second layer reads the first one's had not when they were
          stopped (`shared`, `keys`, `scaled`, `kaiju`), unless previous-token
          heads are suggested (`previous`, on three seeds): not the circuit is
          out of reach, but the head that it begins with
          (experiments/results/induction.md)
"""

from kaiju_jax.experiments.configs import needle
from kaiju_jax.quantization import config as quantization_config
from kaiju_jax.training import experiment as experiment_lib

LAYOUTS = {
  'interleaved': 'L0 L1 L2 L3 L4 L5 G6',
  'full': 'G0 G1 G2 G3 G4 G5 G6',
  'shared': 'L0 L0 L0 L3 L3 L3 G6',
  'first': 'L0 L0 L0 L3 L4 L5 G6',
  'second': 'L0 L1 L2 L3 L3 L3 G6',
  'twos': 'L0 L0 L2 L2 L4 L4 G6',
  'shifted': 'L0 L1 L1 L1 L4 L4 G6',
  'last_alone': 'L0 L0 L0 L3 L3 L5 G6',
  'shallow': 'L0 L1 G2',
}
TECHNIQUES = (
  'interleaved_int8',
  'interleaved_clamp',
  'interleaved_z',
  'kaiju',
  'kaiju_unshared',
  'kaiju_shifted',
  'kaiju_float',
  'kaiju_unclamped',
  'kaiju_no_z',
)
PARTS = 'keys', 'values'
INITS = 'scaled', 'previous'
ARMS = (*LAYOUTS, *PARTS, *INITS, *TECHNIQUES)


def get_config(arm: str = 'shared') -> experiment_lib.Experiment:
  """Returns an arm's experiment.

  Args:
    arm: one of ARMS.

  Raises:
    ValueError: no such arm; the message lists them.
  """
  experiment_lib.check_arm(arm, ARMS)
  base, _, change = arm.partition('_')
  if base != 'kaiju':
    experiment = needle.get_config('interleaved_standard')
    experiment.model.layout = LAYOUTS['interleaved']
  else:
    experiment = needle.get_config('kaiju_standard')
    experiment.model.layout = LAYOUTS['shared']
  if arm in LAYOUTS:
    experiment.model.layout = LAYOUTS[arm]
  elif arm in PARTS:
    experiment.model.layout = LAYOUTS['shared']
    experiment.model.shared = arm
  elif arm in INITS:
    experiment.model.layout = LAYOUTS['shared']
    experiment.init = arm
  elif change:
    _change(experiment, change)
  data, loop = experiment.data, experiment.loop
  data.curriculum = 'few_keys'
  data.length, data.batch = 64, 4
  experiment.optimizer.schedule = 'constant'
  experiment.optimizer.warmup = 0.03
  loop.steps, loop.evaluate_every = 1500, 100
  loop.checkpoint_every = 1500
  return experiment


def _change(experiment: experiment_lib.Experiment, change: str) -> None:
  """Adds or removes one technique."""
  model, z_reg = experiment.model, experiment.optimizer.z_reg
  quantization = model.quantization
  if change == 'int8':
    model.quantization = quantization_config.QuantizationConfig(
      clamp_hidden='none', clamp_input='none'
    )
  elif change == 'clamp':
    kaiju = quantization_config.QuantizationConfig()
    quantization.clamp_hidden = kaiju.clamp_hidden
    quantization.clamp_input = kaiju.clamp_input
  elif change == 'z':
    kaiju = type(z_reg)()
    z_reg.attention, z_reg.logits = kaiju.attention, kaiju.logits
  elif change in ('unshared', 'shifted'):
    model.layout = LAYOUTS['interleaved' if change == 'unshared' else change]
  elif change == 'float':
    model.quantization = quantization_config.none()
    model.quantization.clamp_hidden = quantization.clamp_hidden
    model.quantization.clamp_input = quantization.clamp_input
  elif change == 'unclamped':
    quantization.clamp_hidden = quantization.clamp_input = 'none'
  else:
    z_reg.attention = z_reg.logits = 0.0
