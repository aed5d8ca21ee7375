"""What the page of an ablation says, and what it leaves out."""

from kaiju_jax.experiments.studies.ablation import report
from kaiju_jax.runs import grid
from kaiju_jax.training import experiment as experiment_lib
from tests.experiments import toys


def job(arm, seed, folder):
  experiment = experiment_lib.Experiment(seed=seed)
  return grid.Job(arm, experiment, folder / f'seed{seed}')


def test_a_diverged_arm_is_shown_and_an_unfinished_run_left_out(tmp_path):
  for seed, loss in enumerate(['1.5', '"NaN"', '2.5', '99.0']):
    (tmp_path / f'seed{seed}').mkdir()
    (tmp_path / f'seed{seed}' / 'metrics.jsonl').write_text(
      f'{{"step": 1, "tokens": 8, "loss": {loss}}}\n'
    )
  outcomes = [
    report.Outcome(job(arm, seed, tmp_path), status, ('train',))
    for seed, (arm, status) in enumerate(
      [
        ('wild', 'finished'),
        ('wild', 'finished'),
        ('calm', 'finished'),
        ('calm', 'stopped'),
      ]
    )
  ]
  path = report.write(
    tmp_path,
    title='t',
    command=(),
    runs=outcomes,
    baselines={'wild': 'wild', 'calm': 'calm'},
  )
  table = toys.rows(path.read_text(), 'Training loss, mean')
  assert table['wild'][:3] == ['2', 'not finite', 'not finite']
  assert table['calm'][:3] == ['1', '2.5000', '–']
