"""Improves a model in rounds: it draws replies, a user chooses, it learns.

    python -m experiments.align --model=runs/sft --prompts=dialogues:1200 \\
        --user=planted:fact --out=runs/align
    python -m experiments.align --model=runs/sft --user=log:runs/feedback \\
        --rounds=1 --out=runs/align

A round draws --swipes replies to --groups prompts; the user keeps one of each;
the model trains on the choices (the objective 'preference', towards the frozen
int8 export of --model), and its replies to held-out prompts are read. Guards
stop at the last good round: KL per reply, length of replies, the share of them
that never end, and accuracy on held-out choices. OUT/model is a link to that
round's run, OUT/report.json has all readings. The same command goes on where it
was stopped, and one with more --rounds where that one ended. Several users or
--seeds are a run each, in a folder of its own in OUT; they compile once.

--user=planted:NAME chooses by a known utility (fact, question, catchphrase);
:inverted, :coin and :length behind it are contrasts. --user=head:FILE:DIMENSION
chooses by a token-level head of --model (experiments.train_head), a file or its
run's workdir. --user=log:FOLDER takes the choices that people made
(experiments.feedback); nothing is drawn then.

With --rank, adapters train beside the int8 codes of --model, which may then be
an export or a Hugging Face folder as well, and is itself the reference.

Result:   experiments/results/alignment.md
"""

from collections.abc import Sequence
import re
from typing import Any

from absl import flags

from kaiju_jax.runs import command

_MODEL = flags.DEFINE_string(
  'model', None, 'Workdir of the model to begin with; any model with --rank.'
)
_PROMPTS = flags.DEFINE_string(
  'prompts', '', 'Conversations that wait for a reply, or dialogues:COUNT.'
)
_USER = flags.DEFINE_list(
  'user', None, 'planted:NAME, head:FILE:DIMENSION or log:FOLDER; or several.'
)
_OUT = flags.DEFINE_string('out', None, 'The folder of the rounds.')
_ROUNDS = flags.DEFINE_integer('rounds', 20, 'The most rounds.')
_GROUPS = flags.DEFINE_integer('groups', 32, 'Prompts of a round.')
_SWIPES = flags.DEFINE_integer('swipes', 4, 'Replies to each prompt.')
_TOKENS = flags.DEFINE_integer('tokens', 64, 'The most tokens of a reply.')
_TEMPERATURE = flags.DEFINE_float('temperature', 1.0, 'Of the draws.')
_CHOICE = flags.DEFINE_float(
  'choice_temperature', 0.25, "Of a planted user's choices."
)
_HELD_OUT = flags.DEFINE_integer(
  'held_out', 400, 'Prompts that no round trains on.'
)
_WATCHED = flags.DEFINE_integer(
  'watched', 48, 'Those of them that guards read after each round.'
)
_KL = flags.DEFINE_float('kl_max', 12.0, 'The most nats per reply.')
_LENGTH = flags.DEFINE_float(
  'length_max', 1.5, 'How many times longer or shorter replies may become.'
)
_CUT = flags.DEFINE_float(
  'cut_max', 0.05, 'The largest share of replies that are cut off.'
)
_GUARDED = flags.DEFINE_bool('guards', True, 'Whether guards stop the rounds.')
_STEPS = flags.DEFINE_integer(
  'steps',
  16,
  'Training steps of a round; fewer in proportion where not all prompts have a'
  ' choice.',
)
_RATE = flags.DEFINE_float('rate', 5e-5, 'The learning rate.')
_BETA = flags.DEFINE_float('beta', 0.1, 'The factor of rewards.')
_BATCH = flags.DEFINE_integer('batch', 1, 'Rows of a step.')
_RANK = flags.DEFINE_integer(
  'rank', 0, 'Rank of adapters, which train alone; 0 trains all weights.'
)
_ALPHA = flags.DEFINE_float('alpha', 16.0, 'As config.lora.alpha.')
_MATRICES = flags.DEFINE_string('matrices', '*', 'As config.lora.matrices.')
_SEEDS = command.define_seeds(text='Seeds of the draws of each run.')
_FIGURE = flags.DEFINE_bool(
  'figure', False, 'Whether to draw OUT/curves.png; needs matplotlib.'
)


def main(argv: Sequence[str]) -> None:
  command.check(argv, _MODEL, _USER, _OUT)
  _run()


def _run() -> None:
  from kaiju_jax.alignment import config
  from kaiju_jax.alignment import report
  from kaiju_jax.alignment import rounds
  from kaiju_jax.alignment import users
  from kaiju_jax.reporting import figures

  if _FIGURE.value:
    figures.require_figures()
  out = command.folder(_OUT)
  runs = {}
  for seed in command.seeds(_SEEDS):
    for user in _USER.value:
      settings = _settings(user, seed)
      config.check(settings)
      users.parse(user, settings.choice_temperature)
      runs[f'{user}, seed {seed}'] = settings
  found, programs = {}, {}
  for name, settings in runs.items():
    own = re.sub(r'[^\w.-]+', '_', name)
    folder = out / own if len(runs) > 1 else out
    experiment = _training(settings.seed)
    found[name] = rounds.run(settings, experiment, folder, programs=programs)
    report.show(found[name], folder)
  if len(runs) > 1:
    report.show_runs(found)
  if _FIGURE.value:
    report.draw(found, out / 'curves.png')


def _settings(user: str, seed: int) -> Any:
  """Returns the settings of a run's rounds."""
  from kaiju_jax.alignment import config
  from kaiju_jax.alignment import guards

  return config.Settings(
    model=_MODEL.value,
    prompts=_PROMPTS.value,
    user=user,
    rounds=_ROUNDS.value,
    groups=_GROUPS.value,
    swipes=_SWIPES.value,
    tokens=_TOKENS.value,
    temperature=_TEMPERATURE.value,
    choice_temperature=_CHOICE.value,
    held_out=_HELD_OUT.value,
    watched=_WATCHED.value,
    limits=guards.Limits(_KL.value, _LENGTH.value, _CUT.value),
    is_guarded=_GUARDED.value,
    seed=seed,
  )


def _training(seed: int) -> Any:
  """Returns the training of a round."""
  from kaiju_jax.experiments.configs import preference
  from kaiju_jax.kernels import dispatch
  from kaiju_jax.training import config as training_config

  lora = training_config.LoraConfig(_RANK.value, _ALPHA.value, _MATRICES.value)
  if lora.rank:
    dtype = 'float32' if dispatch.platform() == 'cpu' else 'bfloat16'
    experiment = preference.get_adapters(lora, dtype)
  else:
    experiment = preference.get_config(_MODEL.value)
  experiment.seed = seed
  experiment.data.batch = _BATCH.value
  experiment.optimizer.learning_rate = _RATE.value
  experiment.optimizer.schedule, experiment.optimizer.warmup = 'constant', 0.0
  experiment.objective.preference.beta = _BETA.value
  experiment.loop.steps = _STEPS.value
  experiment.loop.evaluate_every = 0
  experiment.loop.checkpoint_every = _STEPS.value
  experiment.loop.checkpoints_kept = 1
  return experiment


if __name__ == '__main__':
  command.run(main)
