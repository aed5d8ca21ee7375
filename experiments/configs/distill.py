"""Does a sampled teacher teach as well as the whole one, at equal bytes?

A student learns from a larger model's distributions of its training text: all
1,024 probabilities per token, or a few entries of them, drawn by one of four
methods at equal bytes per token on disk. All students have the same
text, rows and steps.

    none         no teacher: the text alone
    full         every probability
    systematic   unbiased, our default
    gumbel       unbiased, the sources' name: one threshold for all tokens
    multinomial  unbiased, independent points (RS-KD)
    top_k        the most likely ones, renormalized: biased
    teacher      the teacher itself, for which `experiments.distill` trains once

    python -m experiments.distill [--seeds=0,1,2]

trains a tokenizer and the teacher, finds how many draws of each method take as
many bytes as 25 systematic ones, writes a store per method and runs all arms
by `experiments.ablate`, into runs/distill. The teacher reads the whole text of
this Python installation, the student a part of it; neither trains on documents
that are held out.

Device:   one core of a CPU
Minutes:  not noted: its parts ran beside much other work
Result:   systematic 0.75 % above full's held-out loss (.56 … .95), in 26 bytes
          per token instead of 1,806; multinomial +.97 %, gumbel +1.16 %, no
          teacher +12 %, top_k +15 % (three seeds, paired)
"""

import sysconfig

from kaiju_jax.data import config as data_config
from kaiju_jax.model import config as model_config
from kaiju_jax.objectives import config as objective_config
from kaiju_jax.quantization import config as quantization_config
from kaiju_jax.training import config as training_config
from kaiju_jax.training import experiment as experiment_lib

ROOT = 'runs/distill'
TOKENIZER = f'{ROOT}/tokenizer.json'
TEACHER = f'{ROOT}/teacher'
VOCABULARY = 1024
# T: no sampled token has more entries.
ENTRIES = 48
# N of `systematic`; the other methods get settings of as many bytes per token.
DRAWS = 25
METHODS = ('full', 'systematic', 'gumbel', 'multinomial', 'top_k')
ARMS = dict.fromkeys((*METHODS, 'none'), 'full')


def get_config(arm: str = 'systematic') -> experiment_lib.Experiment:
  """Returns an arm's experiment.

  Args:
    arm: one of ARMS, or 'teacher'.

  Raises:
    ValueError: no such arm.
  """
  if arm == 'teacher':
    return _experiment(_model(128, 'L0 L0 L0 G3 L4 L4 G6', 4, 384), '', 200)
  experiment_lib.check_arm(arm, (*ARMS, 'teacher'))
  # Names count from the library's root, as the teacher's do, so that the two
  # hold out the same documents.
  library = sysconfig.get_paths()['stdlib']
  student = _model(64, 'L0 G1', 2, 192)
  experiment = _experiment(student, f'{library}/[g-m]*.py', 200)
  if arm != 'none':
    experiment.data.teacher = f'{ROOT}/{arm}'
    experiment.objective = objective_config.ObjectiveConfig(
      name='distillation',
      distillation=objective_config.Distillation(
        entries=VOCABULARY if arm == 'full' else ENTRIES
      ),
    )
  return experiment


def _model(
  d_model: int, layout: str, num_heads: int, d_ff: int
) -> model_config.ModelConfig:
  return model_config.ModelConfig(
    vocab_size=VOCABULARY,
    d_model=d_model,
    layout=layout,
    num_heads=num_heads,
    head_dim=32,
    d_ff=d_ff,
    max_length=256,
    window=64,
    dtype='float32',
    # int8 is another experiment's question.
    quantization=quantization_config.none(),
  )


def _experiment(
  model: model_config.ModelConfig, path: str, steps: int
) -> experiment_lib.Experiment:
  return experiment_lib.Experiment(
    model=model,
    data=data_config.DataConfig(
      path=path,
      tokenizer=TOKENIZER,
      length=128,
      batch=8,
      held_out=0.15,
      evaluated_rows=256,
    ),
    optimizer=training_config.OptimizerConfig(learning_rate=3e-3),
    loop=training_config.LoopConfig(
      steps=steps, log_every=5, checkpoint_every=steps
    ),
  )
