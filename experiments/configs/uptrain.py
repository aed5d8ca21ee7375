"""Is a teacher with many heads of keys a better start than none?

A toy teacher (4 layers, all global, 4 heads of keys and values for 4 of
queries) learns to look letters up in its context
(`tasks/needle/letters.py`). Students are Kaiju's: one head of keys and
values, three local layers of window 16 that share them, one global layer, int8.

    scratch     from fresh parameters
    pooled      from the teacher, heads pooled and shared projections averaged
    own         the same with each owner's own projections
    distilled   as pooled, after the teacher's stored distributions
    heads       of all that, only the heads pooled
    windows     only the windows
    sharing     only the keys and values shared
    int8        only int8
    shifted_scratch, shifted_pooled, shifted_distilled
                the first layer shares with none, L0 L1 L1 G3

    python -m experiments.uptrain_study --out=runs/uptrain

Device:   one core of a CPU
Minutes:  32 of processor time for the teacher and eleven arms on three seeds
Result:   pooled and distilled has the last loss of its student from scratch
          after 0.53 of the tokens in Kaiju's layout, after 0.12 where the first
          layer shares with none. Sharing the first layers' keys is what costs;
          pooled heads and int8 cost nothing after training, windows the far
          needles (experiments/results/uptrain.md).
"""

from kaiju_jax.data import config as data_config
from kaiju_jax.model import config as model_config
from kaiju_jax.quantization import config as quantization_config
from kaiju_jax.runs import uptrain
from kaiju_jax.training import config as training_config
from kaiju_jax.training import experiment as experiment_lib

LENGTH, WINDOW = 128, 16
DOCUMENTS = 30_000
CORPUS, STORE, STARTS = 'corpus/documents.jsonl', 'store', 'starts'

_STUDENT = {'layout': 'L0 L0 L0 G3', 'window': WINDOW}
_SHIFTED = _STUDENT | {'layout': 'L0 L1 L1 G3'}
_TEACHERS = {
  'layout': 'G0 G1 G2 G3',
  'window': WINDOW,
  'num_kv_heads': 4,
  'int8': False,
}
# What `uptrain.student_of` is asked for, and `owners`.
STUDENTS = {
  'scratch': _STUDENT,
  'pooled': _STUDENT,
  'own': _STUDENT | {'owners': 'own'},
  'distilled': _STUDENT,
  'heads': _TEACHERS | {'num_kv_heads': 1},
  'windows': _TEACHERS | {'layout': 'L0 L1 L2 G3'},
  'sharing': _TEACHERS | {'layout': 'G0 G0 G0 G3'},
  'int8': _TEACHERS | {'int8': True},
  'shifted_scratch': _SHIFTED,
  'shifted_pooled': _SHIFTED,
  'shifted_distilled': _SHIFTED,
}
ARMS = ('teacher', *STUDENTS)


def baseline(arm: str) -> str:
  """Returns the student from fresh parameters that an arm is compared with."""
  return 'shifted_scratch' if arm.startswith('shifted') else 'scratch'


def get_config(
  arm: str = 'pooled', root: str = 'runs/uptrain'
) -> experiment_lib.Experiment:
  """Returns an arm's experiment.

  Args:
    arm: one of ARMS.
    root: folder of the study.

  Raises:
    ValueError: no such arm.
  """
  if arm not in ARMS:
    raise ValueError(f'arm={arm!r}: must be one of {", ".join(ARMS)}.')
  experiment = experiment_lib.Experiment(
    model=model_config.ModelConfig(
      vocab_size=256,
      d_model=64,
      layout='G0 G1 G2 G3',
      num_heads=4,
      num_kv_heads=4,
      head_dim=16,
      d_ff=192,
      max_length=2 * LENGTH,
      window=WINDOW,
      dtype='float32',
      quantization=quantization_config.none(),
    ),
    data=data_config.DataConfig(
      path=f'{root}/{CORPUS}', length=LENGTH, batch=8, evaluated_rows=64
    ),
    optimizer=training_config.OptimizerConfig(learning_rate=3e-3),
    loop=training_config.LoopConfig(
      steps=2000, evaluate_every=100, checkpoint_every=2000
    ),
  )
  if arm == 'teacher':
    return experiment
  asked = {k: v for k, v in STUDENTS[arm].items() if k != 'owners'}
  experiment.model = uptrain.student_of(experiment.model, **asked)
  experiment.loop.steps = experiment.loop.checkpoint_every = 400
  experiment.loop.evaluate_every = 20
  if not arm.endswith('scratch'):
    start = arm.replace('distilled', 'pooled')
    experiment.begin_with = f'{root}/{STARTS}/{start}'
  if arm.endswith('distilled'):
    experiment.data.teacher = f'{root}/{STORE}'
    experiment.objective.name = 'distillation'
    # Half of the loss is the data's, because the teacher is not perfect.
    experiment.objective.distillation.mix = 0.5
  return experiment
