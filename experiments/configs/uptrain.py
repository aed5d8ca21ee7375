"""Is a trained teacher a better start than none, and a fit better than means?

A toy teacher learns a text; students have its sizes and cheaper attention. They
begin with the teacher's weights, changed by means or by a fit to the text
(`kaiju_jax/interchange/surgery/`), or with fresh ones.

    world    teacher                                    text
    gated    4 global layers, SwiGLU, 8 query heads     letters to be matched
             over 4 heads of keys and values            (`tasks/needle/letters`)
    normed   the same with QK-norm                      the same
    text     as `gated`                                 docstrings, as bytes
    gemma    5 local layers (window 16), a global one,  docstrings, as bytes
             1 head of keys and values, QK-norm,
             GeGLU, norms before and behind

    arm                        student
    scratch, mean, fitted      Kaiju's: L0 L0 L0 G3, window 16, one head, int8
    distilled                  as `fitted`, from the teacher's distributions
    aligned, phased            as `fitted` and `distilled`, after the first 40
                               steps have aligned attention; same tokens
    heads_*, sharing_*, both_* one head; G0 G0 G0 G3; both (* mean or fitted)
    shifted_*                  G0 G1 G1 G3: the first layer shares with none
    windows, int8              L0 L1 L2 G3; int8: no weight changes

In the world gemma, Kaiju's student shares by pairs and is int8, L0 L1 L1 L3 L3
G5; `sharing_*` and `int8` change one of both.

    python -m experiments.uptrain --world=gated --out=runs/uptrain

Device:   one core of a CPU
Minutes:  2 to 6 per teacher, about 1 per student and seed
Result:   experiments/results/uptrain.md
"""

import dataclasses

from kaiju_jax.data import config as data_config
from kaiju_jax.model import config as model_config
from kaiju_jax.objectives import config as objective_config
from kaiju_jax.quantization import config as quantization_config
from kaiju_jax.runs import uptrain
from kaiju_jax.training import config as training_config
from kaiju_jax.training import experiment as experiment_lib

LENGTH, WINDOW = 128, 16
DOCUMENTS = 30_000
LETTERS, PROSE = 'letters.jsonl', 'docstrings.jsonl'

_GATED = {'feedforward': 'swiglu'}
_GEMMA = {
  'layout': 'L0 L1 L2 L3 L4 G5',
  'num_kv_heads': 1,
  'feedforward': 'geglu',
  'norms': 'both',
  'qk_norm': 'head',
}
# {world: (fields of its teacher's model, its text, the teacher's steps)}.
WORLDS = {
  'gated': (_GATED, LETTERS, 2000),
  'normed': (_GATED | {'qk_norm': 'head'}, LETTERS, 2000),
  'text': (_GATED, PROSE, 1200),
  'gemma': (_GEMMA, PROSE, 1200),
}
STEPS = 400  # Of a student.
ALIGNED_STEPS = 40  # Of them, those that align attention where an arm does.
_KEPT = uptrain.Student('G0 G1 G2 G3', WINDOW, 4, int8=False)
_KAIJU = uptrain.Student('L0 L0 L0 G3', WINDOW)
_OWN = uptrain.Student('L0 L1 L2 L3 L4 G5', WINDOW, int8=False)
_PAIRS = 'L0 L1 L1 L3 L3 G5'


def _from(**wanted: uptrain.Student) -> dict[str, tuple[uptrain.Student, str]]:
  """Returns the arms NAME_mean and NAME_fitted."""
  return {
    f'{name}_{start}': (one, start)
    for name, one in wanted.items()
    for start in uptrain.STARTS
  }


def _whole(wanted: uptrain.Student) -> dict[str, tuple[uptrain.Student, str]]:
  return {
    'scratch': (wanted, ''),
    **{start: (wanted, start) for start in uptrain.STARTS},
  }


_ARMS = {
  **_whole(_KAIJU),
  **dict.fromkeys(('distilled', 'aligned', 'phased'), (_KAIJU, 'fitted')),
  **_from(
    heads=_KEPT._replace(num_kv_heads=1),
    sharing=_KEPT._replace(layout='G0 G0 G0 G3'),
    shifted=_KEPT._replace(layout='G0 G1 G1 G3'),
    both=_KEPT._replace(layout='G0 G0 G0 G3', num_kv_heads=1),
  ),
  'windows': (_KEPT._replace(layout='L0 L1 L2 G3'), 'mean'),
  'int8': (_KEPT._replace(int8=True), 'mean'),
}
# {world: {arm: (the student's attention, its start or '' for none)}}.
STUDENTS = {
  **dict.fromkeys(('gated', 'normed', 'text'), _ARMS),
  'gemma': {
    **_whole(_OWN._replace(layout=_PAIRS, int8=True)),
    'aligned': (_OWN._replace(layout=_PAIRS, int8=True), 'fitted'),
    **_from(sharing=_OWN._replace(layout=_PAIRS)),
    'int8': (_OWN._replace(int8=True), 'mean'),
  },
}
BASELINE = 'scratch'
# Arms that learn from a store, and arms that begin with aligned attention.
DISTILLED, ALIGNED = ('distilled', 'phased'), ('aligned', 'phased')
# The alignment that those arms begin with, an experiment and no arm.
ALIGNMENT = 'alignment'


def get_config(
  arm: str = 'gated_fitted', root: str = 'runs/uptrain'
) -> experiment_lib.Experiment:
  """Returns an arm's experiment.

  Args:
    arm: WORLD_ARM, WORLD_teacher or WORLD_alignment.
    root: folder of the study.

  Raises:
    ValueError: no such arm.
  """
  world, _, name = arm.partition('_')
  known = {w: ('teacher', ALIGNMENT, *arms) for w, arms in STUDENTS.items()}
  if name not in known.get(world, ()):
    every = (f'{w}_{one}' for w, names in known.items() for one in names)
    raise ValueError(f'arm={arm!r}: must be one of {", ".join(every)}.')
  experiment = _teacher(world, root)
  if name == 'teacher':
    return experiment
  if name == ALIGNMENT:
    return _alignment(experiment, world, root)
  wanted, start = STUDENTS[world][name]
  experiment.model = uptrain.student_of(experiment.model, wanted)
  experiment.loop.steps = experiment.loop.checkpoint_every = STEPS
  experiment.loop.evaluate_every = 20
  if start:
    shared = name in DISTILLED + ALIGNED
    experiment.begin_with = f'{root}/{world}/starts/{start if shared else name}'
  if name in ALIGNED:
    experiment.begin_with = f'{root}/{world}/{ALIGNMENT}'
    experiment.loop.steps = STEPS - ALIGNED_STEPS
    experiment.loop.checkpoint_every = experiment.loop.steps
  if name in DISTILLED:
    experiment.data.teacher = f'{root}/{world}/store'
    experiment.objective.name = 'distillation'
    # Half of the loss is the data's, because the teacher is not perfect.
    experiment.objective.distillation.mix = 0.5
  return experiment


def _alignment(
  teacher: experiment_lib.Experiment, world: str, root: str
) -> experiment_lib.Experiment:
  """Returns the run that aligns the attention of the arm `fitted`."""
  student = uptrain.student_of(teacher.model, STUDENTS[world]['fitted'][0])
  return dataclasses.replace(
    teacher,
    model=student,
    begin_with=f'{root}/{world}/starts/fitted',
    objective=objective_config.ObjectiveConfig(
      name='attention_alignment',
      attention_alignment=uptrain.alignment_of(
        teacher.model, f'{root}/{world}/teacher'
      ),
    ),
    loop=training_config.LoopConfig(
      steps=ALIGNED_STEPS, evaluate_every=10, checkpoint_every=ALIGNED_STEPS
    ),
    seed=1000,  # Its rows are not the first of a student's.
  )


def _teacher(world: str, root: str) -> experiment_lib.Experiment:
  """Returns the experiment of a world's teacher."""
  changes, corpus, steps = WORLDS[world]
  model = model_config.ModelConfig(
    vocab_size=256,
    d_model=64,
    layout='G0 G1 G2 G3',
    num_heads=8,
    num_kv_heads=4,
    head_dim=16,
    d_ff=128,
    max_length=2 * LENGTH,
    window=WINDOW,
    dtype='float32',
    quantization=quantization_config.none(),
  )
  return experiment_lib.Experiment(
    model=dataclasses.replace(model, **changes),
    data=data_config.DataConfig(
      path=f'{root}/{corpus}', length=LENGTH, batch=8, evaluated_rows=64
    ),
    optimizer=training_config.OptimizerConfig(learning_rate=3e-3),
    loop=training_config.LoopConfig(
      steps=steps, evaluate_every=100, checkpoint_every=steps
    ),
  )
