"""What a folder of runs says about when they learnt."""

import json

import numpy as np
import pytest

from experiments.configs import induction as config
from kaiju_jax.experiments.studies import learning
from kaiju_jax.storage import files
from kaiju_jax.storage import strict
from tests.experiments import forked


def of(*accuracies, arm='shared'):
  records = [{'step': 0, 'tokens': 0, 'loss': 1.0}] + [
    {
      'step': n,
      'tokens': 1000 * n,
      'eval_accuracy': accuracy,
      'eval_loss': 8.07,
    }
    for n, accuracy in enumerate(accuracies, 1)
  ]
  return learning.LearningRun(arm, config.get_config(arm), records)


def test_tokens_are_counted_up_to_where_a_reading_stays():
  def tokens_to(*accuracies):
    return learning.tokens_to(of(*accuracies), 'eval_accuracy', 0.95)

  assert tokens_to(0.1, 0.96, 0.97) == 2000
  assert tokens_to(0.1, 0.95, 0.94, 0.99) == 4000
  assert tokens_to(0.99, 0.1) is None
  assert tokens_to() is None
  assert learning.tokens_to(of(0.99), 'eval_answered', 0.95) is None


@pytest.mark.parametrize('name', ['eval_accuracy', 'eval_loss/clean'])
def test_a_reading_is_good_on_its_own_side_of_the_threshold(name):
  rng = np.random.default_rng(0)
  for _ in range(200):
    values = rng.choice([1.0, 2.0, 3.0, 8.07, np.nan, np.inf], size=5)
    records = [{'tokens': n, name: x} for n, x in enumerate(values.tolist())]
    run = learning.LearningRun('arm', config.get_config('shared'), records)
    good = values <= 2 if 'loss' in name else values >= 2
    whole = [n for n in range(5) if good[n:].all()]
    assert learning.tokens_to(run, name, 2.0) == (whole[0] if whole else None)


def write(root):
  for run, seed in (
    (of(0.1, 0.97, 1.0), 0),
    (of(0.1, 0.2), 1),
    (of(0.96, arm='interleaved_int8'), 0),
  ):
    folder = root / run.arm / f'seed{seed}'
    folder.mkdir(parents=True)
    files.write_json(folder / 'config.json', strict.dump(run.experiment))
    lines = ''.join(json.dumps(record) + '\n' for record in run.records)
    (folder / 'metrics.jsonl').write_text(lines)


# Words behind --out=runs --reading=, and what refuses them.
REFUSED = {
  'eval_x': "--reading='eval_x': no run has it; there are eval_accuracy, eval_",
  'eval_accuracy --arms=full': "--arms: 'full' is not one of interleaved_int8,",
  'eval_accuracy --out=EMPTY': 'has no runs, ROOT/ARM/seedS/metrics.jsonl;',
  'eval_loss': 'counts as learnt, below 5.545, that of uniform guesses.',
  'eval_loss --most=5.6': '--most=5.6: eval_loss falls while a run learns',
  'eval_loss --most=5 --least=1': '--least=1.0: is for readings that rise',
  'eval_accuracy --most=5': '--most=5.0: is for readings that fall; eval_accur',
}


def test_the_command_prints_a_row_per_arm_and_draws(tmp_path):
  write(tmp_path / 'runs')
  (tmp_path / 'empty').mkdir()
  words = 'eval_accuracy', 'eval_accuracy --arms=interleaved_int8', *REFUSED
  command = f'experiments.ablate --out={tmp_path}/runs --reading='
  commands = [command + x.replace('EMPTY', f'{tmp_path}/empty') for x in words]
  shown, one, *refused = forked.run(
    [command.split() for command in commands],
    environment={'COLUMNS': '200'},
    imported=['matplotlib.figure'],
  )
  lines = shown.stdout.splitlines()
  (shared,) = (line for line in lines if 'shared' in line)
  cells = [cell.strip() for cell in shared.split('│')[1:-1]]
  assert cells == [
    'shared', 'L0 L0 L0 L3 L3 L3 G6', 'none none none', '1 of 2', '2 –',
    '1.000 0.200', '3 2',
  ]  # fmt: skip
  (quantized,) = (line for line in lines if 'interleaved_int8' in line)
  assert 'int8 int8 int8' in quantized and '1 of 1' in quantized
  page = tmp_path / 'runs' / 'learning.eval_accuracy.png'
  assert page.read_bytes().startswith(b'\x89PNG')
  assert one.returncode == 0 and 'L3 L3 L3' not in one.stdout
  assert not shown.jax
  for done, message in zip(refused, REFUSED.values(), strict=True):
    assert done.returncode == 1
    assert done.stderr.startswith('error: ') and message in done.stderr
