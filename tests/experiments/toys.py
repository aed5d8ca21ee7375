"""A config with arms, a trainer of them, and tables of Markdown pages."""

# Each arm of it can run.
ARMS = '''
"""Does the fake arm learn?"""
from kaiju_jax.training import experiment as experiment_lib

ARMS = ('plain', 'better', 'broken')

def get_config(arm='plain'):
  if arm not in ARMS:
    raise ValueError(arm)
  experiment = experiment_lib.Experiment()
  experiment.loop.steps = 4
  experiment.loop.log_every = 1
  experiment.optimizer.learning_rate = {'plain': 1.0, 'better': 0.5}.get(arm, 9)
  return experiment
'''

# Loss of 'plain' is 10 + seed, 'better' is lower by (1 + seed) / 10, so that
# the paired differences of seeds 0 and 1 are -.1 and -.2. The workdir is
# written as the real loop writes it. Each run counts its starts, and a patient
# one waits in its first until it is told to save.
TRAIN = """
import json, os, pathlib, signal, sys, time
from absl import app, flags
from ml_collections import config_flags
from kaiju_jax.training import workdir
from kaiju_jax.training.records import metrics
CONFIG = config_flags.DEFINE_config_file('config')
WORKDIR = flags.DEFINE_string('workdir', None, '')

def main(argv):
  config, arm = CONFIG.value, flags.FLAGS['config'].config_filename
  arm = arm.rpartition(':')[2]
  with workdir.open_workdir(WORKDIR.value, config) as folder:
    starts = folder / 'starts'
    starts.write_text((starts.read_text() if starts.exists() else '') + 'x')
    used = os.environ.get('JAX_ENABLE_COMPILATION_CACHE')
    (folder / 'cache').write_text(f'{used}')
    if arm == 'broken' and config.seed == 1:
      (folder / workdir.DIVERGED).write_text('{"step": 3}')
      raise SystemExit('error: the loss was NaN')
    if arm == 'broken':
      raise RuntimeError('a layer fell off')
    waits = os.environ.get('FAKE') == 'patient' and starts.read_text() == 'x'
    loss = 10 + config.seed
    if arm == 'better':
      loss -= (1 + config.seed) / 10
    if os.environ.get('FAKE') == 'grid':
      loss += config.model.d_ff * config.data.batch / 1000
    done = 0
    if (folder / metrics.FILE).exists():
      done = max((r['step'] for r in metrics.read(folder)), default=0)
    records = metrics.Records(folder, done)
    stop = []
    signal.signal(signal.SIGTERM, lambda *_: stop.append(1))
    for step in range(done + 1, config.loop.steps + 1):
      records.append(step, 8 * step, {'loss': loss})
      while waits and not stop:
        time.sleep(0.01)
      if stop:
        return
    step = config.loop.steps
    half = folder / 'checkpoints' / f'{step}.orbax-checkpoint-tmp'
    if os.environ.get('FAKE') == 'killed' and not half.exists():
      half.mkdir(parents=True)
      os.kill(os.getpid(), signal.SIGKILL)
    records.append(step, 8 * step, {'eval_bits': 2 * loss})
    (folder / 'checkpoints' / str(step)).mkdir(parents=True)
    (folder / 'environment.json').write_text(
      json.dumps({'jax': '1.2.3', 'git_revision': 'abc', 'date': '2026'}))

app.run(main)
"""


def rows(report: str, heading: str) -> dict[str, list[str]]:
  """The table under a heading: {first cell: the others}."""
  section = report.split(f'## {heading}')[1].split('\n## ')[0]
  cells = [
    [cell.strip() for cell in line.strip('| ').split('|')]
    for line in section.splitlines()
    if line.startswith('|')
  ]
  return {row[0]: row[1:] for row in cells[2:]}
