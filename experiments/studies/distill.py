"""Runs the study of distillation: teacher, stores, students, verdict."""

from collections.abc import Mapping
import contextlib
import pathlib
import subprocess
import sys

from kaiju_jax.data import bpe
from kaiju_jax.data import holdout
from kaiju_jax.distillation import store
from kaiju_jax.evaluation import run_results
from kaiju_jax.experiments.configs import distill
from kaiju_jax.experiments.studies import equal_bytes
from kaiju_jax.experiments.studies import settings as settings_lib
from kaiju_jax.reporting import report
from kaiju_jax.reporting import statistics
from kaiju_jax.storage import files
from kaiju_jax.training import metrics

_CONFIG = 'distill'
_MEASURE = 'eval_loss'


def run(settings: settings_lib.Distill) -> None:
  """Trains teacher and students, and prints the verdict.

  Raises:
    OSError, ValueError: something cannot be read or written, or is wrong.
  """
  _make_tokenizer(pathlib.Path(distill.TOKENIZER))
  _run('train', f'--config={_CONFIG}:teacher', f'--workdir={distill.TEACHER}')
  for method, sampling in _samplings().items():
    _run(
      'teach',
      f'--teacher={distill.TEACHER}',
      f'--config={_CONFIG}:{method}',
      f'--out={distill.ROOT}/{method}',
      f'--method={method}',
      *(f'--{name}={value}' for name, value in sampling.items()),
    )
  _run(
    'ablate',
    f'--config={_CONFIG}',
    f'--out={distill.ROOT}/students',
    f'--seeds={",".join(map(str, settings.seeds))}',
    f'--jobs={settings.jobs}',
  )
  _publish(settings)


def _make_tokenizer(path: pathlib.Path) -> None:
  """Trains a tokenizer on the teacher's training text, once."""
  if path.exists():
    return

  data = distill.get_config('teacher').data
  training, _ = holdout.read(data.path, data.held_out)
  texts = (segment for one in training for segment in one.segments)
  bpe.train(path, texts, distill.VOCABULARY)


def _samplings() -> dict[str, dict[str, int]]:
  """Returns flags of each method's store, found once and kept in a file."""
  path = pathlib.Path(distill.ROOT) / 'samplings.json'
  if not path.exists():
    student = distill.get_config('none')
    found = equal_bytes.samplings(
      distill.TEACHER, student, distill.DRAWS, distill.ENTRIES
    )
    files.write_json(path, found)
  return files.read_json(path)


def _run(name: str, *arguments: str) -> None:
  """Runs one of the commands; its Ctrl-C saves, and ends this one."""
  words = [sys.executable, '-m', f'kaiju_jax.experiments.{name}', *arguments]
  print(f'$ {" ".join(["python", *words[1:]])}', flush=True)
  with subprocess.Popen(words) as process:
    try:
      status = process.wait()
    except KeyboardInterrupt:
      process.wait()  # It was interrupted as well, and saves.
      raise
  if status:
    raise SystemExit(status)


def _publish(settings: settings_lib.Distill) -> None:
  """Prints each arm's held-out loss, differences, and bytes per token."""
  losses = {arm: _losses(settings, arm) for arm in distill.ARMS}
  rows = []
  for arm, of_seed in losses.items():
    size = ''
    if arm in distill.METHODS:
      manifest = store.read_manifest(f'{distill.ROOT}/{arm}')
      size = f'{manifest.bytes_per_token():.1f}'
    rows.append(
      (
        arm,
        size,
        len(of_seed),
        f'{statistics.mean(list(of_seed.values())):.4f}',
        _difference(of_seed, losses['full']),
        _difference(of_seed, losses['top_k']),
      )
    )
  teacher = _last(pathlib.Path(distill.TEACHER))
  rows.append(('teacher', '', 1, f'{teacher:.4f} (all text)', '', ''))
  table = report.Table(
    rows,
    ('arm', 'bytes/token', 'seeds', 'loss', '− full', '− top_k'),
    'Held-out loss, nats per token; differences paired by seed',
  )
  report.Report().add(table, *_verdicts(losses)).show(width=100)


def _losses(settings: settings_lib.Distill, arm: str) -> dict[int, float]:
  """Returns an arm's held-out loss by seed, of those runs that are finished."""
  folder = pathlib.Path(distill.ROOT) / 'students' / arm
  found = {}
  for seed in settings.seeds:
    with contextlib.suppress(FileNotFoundError, KeyError):
      found[seed] = _last(folder / f'seed{seed}')
  return found


def _last(workdir: pathlib.Path) -> float:
  """Returns the held-out loss of a run's last evaluation."""
  return run_results.summarize(metrics.read(workdir))[_MEASURE]


def _difference(arm: Mapping[int, float], other: Mapping[int, float]) -> str:
  if arm is other:
    return ''
  found = statistics.difference(arm, other)
  low, high = found.mean - found.half_width, found.mean + found.half_width
  return f'{found.mean:+.4f} ({low:+.4f} … {high:+.4f})'


def _verdicts(losses: Mapping[str, Mapping[int, float]]) -> list[str]:
  """Returns the three targets, met or missed."""
  ours = losses['systematic']
  lines = []
  found = statistics.difference(ours, losses['full'])
  share = found.mean / found.baseline
  lines.append(
    f'systematic against full: {share:+.2%}'
    f' ({report.verdict("within 1 %", abs(share) <= 0.01)})'
  )
  for arm in ('top_k', 'none'):
    found = statistics.difference(ours, losses[arm])
    highest = found.mean + found.half_width
    lines.append(
      f'systematic against {arm}: {found.mean:+.4f}, at most {highest:+.4f}'
      f' ({report.verdict("below 0", highest < 0)})'
    )
  return lines
