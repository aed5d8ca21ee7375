"""Workdirs that nobody trained, listed and compared."""

import html
import json
import subprocess
import sys

import numpy as np
import pytest
from scipy import stats

from kaiju_jax.costs import step_time
from kaiju_jax.experiments.studies import settings as settings_lib
from kaiju_jax.experiments.studies.ablation import compare
from kaiju_jax.experiments.studies.ablation import report as report_lib
from kaiju_jax.reporting import report
from kaiju_jax.training import experiment as experiment_lib
from kaiju_jax.training import workdir
from kaiju_jax.training.records import metrics
from tests.experiments import toys

STEPS, TOKENS = 3, 100


def experiment(seed=0, **model):
  one = experiment_lib.Experiment(seed=seed)
  one.loop.steps, one.loop.log_every = STEPS, 1
  for name, value in model.items():
    setattr(one.model, name, value)
  return one


def write(folder, loss, steps=STEPS, seed=0, rate=50.0, **model):
  """Writes a run whose every loss is `loss`; it has finished after `STEPS`."""
  with workdir.open_workdir(folder, experiment(seed, **model)) as folder:
    records = metrics.Records(folder, 0)
    for step in range(1, steps + 1):
      timing = {'tokens_per_second': rate} if step > 1 else {}
      records.append(step, step * TOKENS, {'loss': loss, **timing})
    if steps == STEPS:
      records.append(steps, steps * TOKENS, {'eval_loss': loss + 1})
      (folder / 'checkpoints' / str(STEPS)).mkdir(parents=True)
  return folder


def arms(*paths):
  found = {}
  for job in compare.name_arms(compare.find_jobs([str(x) for x in paths])):
    found.setdefault(job.arm, []).append(job.experiment.seed)
  return found


def run(paths, **settings):
  compare.run(settings_lib.Compare(**settings), [str(path) for path in paths])


def test_workdirs_are_found_wherever_they_lie(tmp_path):
  for seed in (0, 1):
    write(tmp_path / 'deep' / 'int8' / f'seed{seed}', 1, seed=seed)
  write(tmp_path / 'alone', 1, window=3)
  (tmp_path / 'other').mkdir()
  (tmp_path / 'other' / 'config.json').write_text('{"model_type": "llama"}')
  assert arms(tmp_path) == {'alone': [0], 'deep/int8': [0, 1]}
  both = tmp_path / 'deep', tmp_path
  assert arms(*both) == {'int8': [0, 1], 'alone': [0]}  # Each run once.
  assert arms(tmp_path / 'deep' / 'int8') == {'int8': [0, 1]}
  assert arms(tmp_path / 'deep' / 'int8' / 'seed1') == {'int8': [1]}
  for path in ('other', 'missing'):
    with pytest.raises(ValueError, match=path):
      compare.find_jobs([str(tmp_path / path)])


def test_runs_that_differ_in_the_seed_alone_are_an_arm(tmp_path):
  write(tmp_path / 'a', 1)
  write(tmp_path / 'b', 1, seed=4)
  write(tmp_path / 'c', 1)  # The seed of `a`, again.
  write(tmp_path / 'd', 1, window=3)
  for root in ('one', 'two'):
    write(tmp_path / root / 'x' / 'seed0', 1)
    write(tmp_path / root / 'x' / 'seed1', 1, seed=1, window=3)
  names = [tmp_path / name for name in ('a', 'b', 'c', 'd')]
  assert arms(*names) == {'a': [0, 4], 'c': [0], 'd': [0]}
  x = [str(tmp_path / root / 'x') for root in ('one', 'two')]
  found = arms(tmp_path / 'one', tmp_path / 'two')
  first, second = ({one: [0], f'{one} (2)': [1]} for one in x)
  assert found == first | second


LOCK = """
import sys, time
from kaiju_jax.storage import locks
with locks.hold(sys.argv[1] + '/lock', 'workdir', 'trains', '--workdir'):
  print('held', flush=True)
  sys.stdin.read()
"""


def test_the_list_says_how_far_runs_are_and_disturbs_none(tmp_path):
  for name, steps in [('done', STEPS), ('held', 2), ('stopped', 1), ('new', 0)]:
    write(tmp_path / name, 1.5, steps)
  write(tmp_path / 'wild' / 'seed7', float('nan'), 2, seed=7)
  (tmp_path / 'wild' / 'seed7' / workdir.DIVERGED).write_text('{"step": 2}')
  words = [sys.executable, '-c', LOCK, str(tmp_path / 'held')]
  pipes = {'stdin': subprocess.PIPE, 'stdout': subprocess.PIPE}
  with subprocess.Popen(words, **pipes) as holder:
    assert holder.stdout.readline() == b'held\n'
    jobs = compare.find_jobs([str(tmp_path)])
    rows = list(compare.table(jobs).cells())
    assert workdir.find_trainer(tmp_path / 'held') == holder.pid
    assert len(compare.table(jobs, 'running').rows) == 1
    # The lock can be taken all the same: looking took none.
    with workdir.open_workdir(tmp_path / 'stopped', experiment()):
      assert workdir.find_trainer(tmp_path / 'stopped')
    holder.communicate()
  assert rows == [
    ['done', '0', '3 of 3', '1.5000', '2.5000', '50', 'finished'],
    ['held', '0', '2 of 3', '1.5000', '–', '50', 'running'],
    ['new', '0', '0 of 3', '–', '–', '–', 'stopped'],
    ['stopped', '0', '1 of 3', '1.5000', '–', '–', 'stopped'],
    ['wild', '7', '2 of 3', 'not finite', '–', '50', 'diverged at step 2'],
  ]
  assert workdir.find_trainer(tmp_path / 'held') is None
  assert workdir.find_trainer(tmp_path / 'new') is None
  assert workdir.find_trainer(tmp_path) is None


def planted(root, seeds=(0, 1, 2)):
  """A grid of 2 × 2 with an interaction; noise differs in every run."""
  random = np.random.default_rng(0)
  losses = {}
  for window, width in [(4, 8), (4, 16), (2, 8), (2, 16)]:
    arm = f'w{window}d{width}'
    own = losses[arm] = {}
    for seed in seeds:
      own[seed] = 3 + seed + 0.1 * (window == 2) - 0.2 * (width == 16)
      own[seed] += 0.3 * (arm == 'w2d16') + random.normal(0, 0.01)
      folder = root / arm / f'seed{seed}'
      write(folder, own[seed], seed=seed, window=window, d_ff=width)
  return losses


def test_a_comparison_is_a_page_with_intervals_and_effects(tmp_path, capsys):
  losses = planted(tmp_path / 'runs')
  out = tmp_path / 'out'
  run([tmp_path / 'runs'], out=str(out), baseline='w4d8')
  assert str(out / 'report.html') in capsys.readouterr().out.replace('\n', '')
  text = (out / 'report.md').read_text()
  fields = toys.rows(text, 'Fields that differ')
  assert fields == {
    'w4d8': ['8', '4'],
    'w2d16': ['16', '2'],
    'w2d8': ['8', '2'],
    'w4d16': ['16', '4'],
  }
  told = json.loads((out / 'report.json').read_text())
  assert told['data']['measures']['loss']['w2d16'] == pytest.approx(
    {str(seed): loss for seed, loss in losses['w2d16'].items()}
  )
  rows = toys.rows(text, 'Training loss, mean of all 3 steps')
  arm, baseline = (list(losses[x].values()) for x in ('w2d16', 'w4d8'))
  low, high = stats.ttest_rel(arm, baseline).confidence_interval()
  assert rows['w2d16'][3] == 'w4d8 (3)'
  assert f'({low:+.4f} … {high:+.4f})' in rows['w2d16'][4]
  both = rows['model.d_ff: 8 → 16 × model.window: 4 → 2'][0]
  assert float(both.split()[0]) == pytest.approx(0.3, abs=0.05)
  drawn = [one['figure'] for one in told['parts'] if 'figure' in one]
  assert drawn == ['loss_curves.png', 'final_loss.png', 'eval_loss_curves.png']
  page = (out / 'report.html').read_text()
  assert page.count('<svg') == 3 and 'http:' not in page
  assert 'https:' not in page
  assert html.escape('model.d_ff: 8 → 16') in page
  with pytest.raises(ValueError, match='--baseline=w'):
    run([tmp_path / 'runs'], baseline='w')


def grow(folder, places, evaluated, seed=0, done=False, **model):
  """Writes a run of 400 steps; its loss at a step is the step ÷ 1,000."""
  made = experiment(seed, **model)
  made.loop.steps = 400
  with workdir.open_workdir(folder, made) as folder:
    records = metrics.Records(folder, 0)
    for step in places:
      value = {'loss': step / 1000 + seed}
      records.append(step, step * TOKENS, value)
      if step in evaluated:
        records.append(step, step * TOKENS, {'eval_loss': step + seed})
    if done:
      (folder / 'checkpoints' / '400').mkdir(parents=True)


def outcomes(root):
  jobs = compare.name_arms(compare.find_jobs([str(root)]))
  return [report_lib.Outcome(job, compare.state(job), ()) for job in jobs]


@pytest.mark.parametrize('unit, factor', [('step', 1), ('tokens', TOKENS)])
def test_runs_are_compared_where_all_have_been(tmp_path, unit, factor, capsys):
  """Every 10 and 25 steps are recorded, so every 50 by both."""
  for seed in (0, 1):
    often = range(10, 401, 10)
    grow(tmp_path / 'a' / f'seed{seed}', often, (100, 200, 400), seed, True)
    seldom = range(25, 226, 25)  # It is still running.
    grow(tmp_path / 'b' / f'seed{seed}', seldom, (100, 225), seed, window=3)
  wild = tmp_path / 'c' / 'seed0'
  grow(wild, range(10, 191, 10), (), window=5)
  (wild / workdir.DIVERGED).write_text('{"step": 190}')
  baselines = dict.fromkeys('abc', 'a')

  def read(most):
    runs = compare.cut(outcomes(tmp_path), unit, most * factor)
    about = {'title': '', 'command': (), 'baselines': baselines}
    page = report_lib.make(tmp_path, runs=runs, draws=False, **about)
    return page.data['measures'], page.data['places'], page.markdown()

  for most, place in ((225, 200), (200, 200), (199, 150)):
    measures, places, text = read(most)
    assert places == {'loss': place * factor, 'eval_loss': 100 * factor}
    # The mean over the last 100 steps of those that each recorded.
    for arm, gap in (('a', 10), ('b', 25)):
      mean = np.arange(place, place - 100, -gap).mean() / 1000
      assert measures['loss'][arm] == pytest.approx({0: mean, 1: mean + 1})
      assert measures['eval_loss'][arm] == {0: 100, 1: 101}
  shown = 'step 150' if unit == 'step' else '15,000 tokens'
  row = toys.rows(
    text, f'Training loss, mean of the last 100 steps up to {shown}'
  )
  assert row['c'][:2] == ['0, 1 diverged', '–']
  # Where it has been before it diverged, it enters; nobody evaluated there.
  measures, places, text = read(99)
  assert places == {'loss': 50 * factor}
  assert measures['loss']['c'] == {0: pytest.approx(0.03)}
  assert toys.rows(text, 'Training loss, mean of all 50 steps')['c'][0] == '1'
  for most, said in ((226, 'b seed 0 '), (49, 'must be more')):
    with pytest.raises(ValueError, match=f'--{unit}={most * factor}: .*{said}'):
      run([tmp_path], **{unit: most * factor})
  run([tmp_path], **{unit: 225 * factor})
  assert f'up to {shown.replace("15", "20")}' in capsys.readouterr().out


def test_a_finished_run_has_been_at_its_end(tmp_path):
  """Its last step need not be on record, and no run is beyond it."""
  for arm, window in (('a', 1), ('b', 2)):
    grow(tmp_path / arm, range(7, 400, 7), (), done=True, window=window)
  for one in compare.cut(outcomes(tmp_path), 'step', 400):
    assert one.cut.places == {'loss': 399}
    assert one.records()[-1]['loss'] == 0.399
  with pytest.raises(ValueError, match=r'--step=401: a seed 0 .* step 400'):
    compare.cut(outcomes(tmp_path), 'step', 401)
  with pytest.raises(ValueError, match=r'--tokens=2: has no effect'):
    settings_lib.Compare(step=1, tokens=2)


@pytest.mark.parametrize(
  'recorded, used',
  [
    ({'w4d16': 'w4d8', 'w2d8': 'w4d8', 'gone': 'w4d8'}, 'w4d8'),
    ({'w4d16': 'w4d8', 'w2d8': 'w2d16'}, 'w2d16'),
    ({'w4d16': 'gone'}, 'w2d16'),
  ],
)
def test_a_folders_report_says_which_arm_is_the_baseline(
  recorded, used, tmp_path, monkeypatch
):
  planted(tmp_path)
  (tmp_path / 'report.json').write_text(
    json.dumps({'data': {'baselines': recorded}})
  )
  made = []
  monkeypatch.setattr(
    report_lib, 'make', lambda _, **given: made.append(given) or report.Report()
  )
  run([tmp_path])
  assert set(made[0]['baselines'].values()) == {used}


@pytest.mark.parametrize(
  'seeds, said',
  [
    ((0,), ['w2d8 (1)', 'no interval: too few seeds']),
    ((0, 1), ['w2d8 (2)', ' … ']),
    ((7,), ['w2d8 (too few)', 'no interval: too few seeds']),
    ((7, 8), ['w2d8 (Welch)', ' … ']),
  ],
)
def test_seeds_that_do_not_pair_and_too_few(seeds, said, tmp_path, capsys):
  for seed in (0, 1):
    write(tmp_path / 'w2d8' / f'seed{seed}', 1 + seed / 8, seed=seed)
  for seed in seeds:
    write(tmp_path / 'b[/]' / f'seed{seed}', 2 + seed, seed=seed, window=3)
  write(tmp_path / 'stopped' / 'seed0', 99.0, 2, window=5)
  runs = outcomes(tmp_path)
  page = report_lib.make(
    tmp_path,
    title='',
    command=(),
    runs=runs,
    baselines=dict.fromkeys((one.arm for one in runs), 'w2d8'),
    draws=False,
  )
  text = page.markdown()
  row = toys.rows(text, 'Training loss')['b[/]']
  assert row[3] == said[0] and said[1] in row[4]
  assert toys.rows(text, 'Training loss')['stopped'][:2] == ['0', '–']
  assert not any(hasattr(part, 'drawn') for part in page.parts)
  # A name in brackets is no markup of the terminal's.
  listed = compare.table([one.job for one in runs])
  report.Report().add(listed).show(width=60, has_markup=False)
  assert 'b[/]' in capsys.readouterr().out


def test_curves_are_over_tokens_seconds_and_flops(tmp_path):
  write(tmp_path / 'slow', 1.0, rate=25.0, window=4)
  write(tmp_path / 'wide', 2.0, rate=50.0, window=4, d_ff=16)
  jobs = compare.find_jobs([str(tmp_path)])
  runs = [report_lib.Outcome(job, 'finished', ()) for job in jobs]
  page = report_lib.make(
    tmp_path, title='', command=(), runs=runs, baselines={}
  )
  drawn = next(x.drawn for x in page.parts if hasattr(x, 'drawn'))
  tokens, seconds, flops = drawn.axes
  for axes in drawn.axes:  # A seed and a mean of each arm.
    assert [len(one.get_ydata()) for one in axes.lines] == [3] * 4
  assert tokens.lines[0].get_xdata().tolist() == [100, 200, 300]
  assert tokens.get_ylabel().startswith('training')
  # From the first record on, at 25 and at 50 tokens/s.
  assert seconds.lines[0].get_xdata() == pytest.approx([0, 4, 8])
  assert seconds.lines[3].get_xdata() == pytest.approx([0, 2, 4])
  for index, job in ((0, jobs[0]), (2, jobs[1])):
    one = job.experiment
    total = step_time.operations(
      one.model, 300, one.data.length, step_time.ARMS[0]
    )
    line = flops.lines[index]
    assert line.get_xdata()[-1] == pytest.approx(sum(total.values()))
  assert flops.lines[0].get_xdata()[-1] != flops.lines[2].get_xdata()[-1]
