"""Do synthetic question-answer variations sharpen question answering?

Invented persons (`kaiju_jax/tasks/facts.py`), each with a passage of four
statements. A generator is trained on passages of other persons with questions.
It writes variations of the students' passages. The students have few questions
of their own, and otherwise the same passages:

    generator   4,000 persons with 4 questions each
    originals   30 persons with 4 questions each, and 1,000 passages, repeated
    filtered    the same, with the kept variations on the passages, as trees
    unfiltered  the same, with all variations, planted errors among them

    python -m experiments.facts --out=runs/facts [--seeds=0,1,2]

All models start from an initialization that suggests induction
(`evaluation/induction.py`), because the test is about texts and not about how
copying emerges, and read tokens of a BPE trained on the generator's text.

All students see equally many tokens. They are asked about new persons, in
phrasings that no text has held, with the passage before the question.

Device:   2 shared cores of a CPU
Minutes:  25 of processor time
Result:   filters: precision .98, recall .91. On unseen phrasings originals are
          right in 1.8 %, filtered in 18.8, unfiltered in 17.0: questions teach
          what passages do not, and 30 % of errors do little harm (one seed;
          experiments/results/synthesis.md)
"""

from kaiju_jax.data import config as data_config
from kaiju_jax.model import config as model_config
from kaiju_jax.quantization import config as quantization_config
from kaiju_jax.training import config as training_config
from kaiju_jax.training import experiment as experiment_lib

STUDENTS = ('originals', 'filtered', 'unfiltered')
ARMS = ('generator', *STUDENTS)

# Persons of each part: none is in two.
GENERATOR = range(4_000)
SEEDED = range(10_000, 10_030)
TARGETS = range(20_000, 21_000)
ASKED = range(30_000, 30_050)
VARIATIONS = 4
VOCABULARY = 1024


def get_config(
  arm: str = 'originals', root: str = 'runs/facts'
) -> experiment_lib.Experiment:
  """Returns an arm's experiment.

  Args:
    arm: one of ARMS.
    root: folder of the study, which holds the tokenizer and the texts.

  Raises:
    ValueError: no such arm.
  """
  experiment_lib.check_arm(arm, ARMS)
  return experiment_lib.Experiment(
    model=model_config.ModelConfig(
      vocab_size=VOCABULARY,
      d_model=128,
      layout='L0 G1 L2 G3',
      window=32,
      num_heads=4,
      head_dim=32,
      d_ff=512,
      max_length=512,
      dtype='float32',
      quantization=quantization_config.none(),
    ),
    data=data_config.DataConfig(
      path=f'{root}/text/{arm}',
      tokenizer=f'{root}/tokenizer.json',
      length=256,
      batch=8,
      held_out=0.0,
    ),
    optimizer=training_config.OptimizerConfig(learning_rate=2e-3),
    loop=training_config.LoopConfig(
      steps=600 if arm == 'generator' else 800, checkpoint_every=600
    ),
    init='induction',
  )
