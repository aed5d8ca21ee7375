"""Is a model better at a target if its data mix is made similar to the target?

The sources name two objectives, *MMLU Max* ("AGI Benchmarks") and *Production
Max* ("highly engaging"), and a method, "a pre-training data mix that is as
similar as possible to the task being optimized for". They give no weights. So
an arm is a target and a method, and its weights are in the mix.json that
`experiments.mix` computes:

    mmlu_max        as similar as possible to reference prose
    production_max  as similar as possible to turns of two sides
    annealed        production_max, whose weights turn into those of mmlu_max at
                    85 % of the run: the sources schedule "the MMLU Max section"
                    near the end
    as_is           all text in proportion: the baseline

The texts are stand-ins that every Python carries: the language reference is no
benchmark, and an interactive session is no conversation. Name your own --target
and --sources for those; the commands stay the same.

    python -m experiments.texts --of=mixes --out=runs/mixes/texts
    T=runs/mixes/texts
    S=code=$T/source_code.jsonl,comments=$T/source_comments.jsonl
    S=$S,docstrings=$T/source_docstrings.jsonl
    S=$S,messages=$T/source_messages.jsonl,sessions=$T/source_sessions.jsonl
    M=reference=$T/target_reference.jsonl,turns=$T/target_sessions.jsonl
    python -m experiments.mix --target=$T/target_reference.jsonl \\
      --sources=$S --measured=$M --tokens=409600 --out=runs/mixes/mmlu_max
    python -m experiments.mix --target=$T/target_sessions.jsonl \\
      --sources=$S --measured=$M --tokens=409600 \\
      --out=runs/mixes/production_max
    python -m experiments.mix --target=$T/target_sessions.jsonl \\
      --sources=$S --measured=$M --tokens=409600 --method=proportional \\
      --out=runs/mixes/as_is
    python -m experiments.mix --target=$T/target_sessions.jsonl \\
      --sources=$S --measured=$M --tokens=409600 \\
      --anneal=runs/mixes/mmlu_max/mix.json --out=runs/mixes/annealed
    python -m experiments.ablate --config=mixes \\
      --out=runs/mixes/arms --seeds=0,1,2 --jobs=1

Both targets are measured in every run, on text that no run reads: a source of
weight 0 has a held-out loss.

Device:   one of 2 cores of a CPU
Minutes:  5 for twelve runs
Result:   each mix is best at its own target. Held-out bits per byte of the
          reference prose: mmlu_max 3.56, as_is 3.76, annealed 3.80,
          production_max 3.84; of the turns: production_max 4.39, annealed
          4.44, mmlu_max 4.85, as_is 4.89 (means of three seeds; intervals in
          `experiments/results/mixes.md`).
"""

from kaiju_jax.data import config as data_config
from kaiju_jax.model import config as model_config
from kaiju_jax.training import config as training_config
from kaiju_jax.training import experiment as experiment_lib

ARMS = ('as_is', 'mmlu_max', 'production_max', 'annealed')


def get_config(arm: str = 'mmlu_max') -> experiment_lib.Experiment:
  """Returns an arm's experiment.

  Args:
    arm: one of ARMS; which mix.json is read.

  Raises:
    ValueError: no such arm.
  """
  experiment_lib.check_arm(arm, ARMS)
  return experiment_lib.Experiment(
    model=model_config.ModelConfig(
      layout='L0 G1',
      d_model=64,
      num_heads=2,
      head_dim=32,
      d_ff=256,
      max_length=256,
      window=64,
    ),
    data=data_config.DataConfig(
      mix=f'runs/mixes/{arm}/mix.json',
      anneal_at=0.85 if arm == 'annealed' else 1.0,
      length=256,
      batch=8,
      held_out=0.25,
      evaluated_rows=32,
    ),
    optimizer=training_config.OptimizerConfig(learning_rate=2.5e-3),
    loop=training_config.LoopConfig(
      steps=200, evaluate_every=200, checkpoint_every=200, log_every=10
    ),
  )
