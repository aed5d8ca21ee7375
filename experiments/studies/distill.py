"""Runs the study of distillation: teacher, stores, students, verdict.

Methods of sampling are compared at equal bytes per token: the teacher's
distributions of the first tokens of the student's text are drawn and encoded
by each method, with more and more draws, until they take as many bytes as
`systematic` does.
"""

from collections.abc import Callable
from collections.abc import Mapping
import contextlib
import pathlib
import subprocess
import sys

import jax
import numpy as np

from kaiju_jax.data import bpe
from kaiju_jax.data import holdout
from kaiju_jax.distillation import config as distillation_config
from kaiju_jax.distillation import record
from kaiju_jax.distillation import sample
from kaiju_jax.distillation import store
from kaiju_jax.distillation import teach
from kaiju_jax.evaluation import run_results
from kaiju_jax.experiments.configs import distill
from kaiju_jax.experiments.studies import settings as settings_lib
from kaiju_jax.model import batches
from kaiju_jax.model import transformer
from kaiju_jax.reporting import report
from kaiju_jax.reporting import statistics
from kaiju_jax.runs import load
from kaiju_jax.storage import files
from kaiju_jax.tasks import texts as texts_lib
from kaiju_jax.training import experiment as experiment_lib
from kaiju_jax.training.records import metrics

_CONFIG = 'distill'
_MEASURE = 'eval_loss'
_TOKENS = 4 * record.TOKENS  # That sizes are compared on.


def run(settings: settings_lib.Distill) -> None:
  """Trains teacher and students, and prints the verdict.

  A dry run shows the students' commands, once their stores are there.

  Raises:
    OSError, ValueError: something cannot be read or written, or is wrong.
  """
  if not settings.dry_run:
    _teach()
  # Its flags are some of ablate's.
  _run(
    'ablate',
    f'--config={_CONFIG}',
    f'--out={distill.ROOT}/students',
    *sys.argv[1:],
  )
  if not settings.dry_run:
    _publish(settings)


def _teach() -> None:
  """Trains the teacher, and makes a store by each method."""
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
    files.write_json(path, _find_samplings())
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
        *(
          '' if arm == other else statistics.difference(of_seed, losses[other])
          for other in ('full', 'top_k')
        ),
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


def _find_samplings() -> dict[str, dict[str, int]]:
  """Returns {method: {setting: value}} that take as many bytes per token."""
  experiment, entries = distill.get_config('none'), distill.ENTRIES
  logits_NV, number_N = _logits(distill.TEACHER, experiment)
  draw = jax.jit(sample.draw, static_argnums=2)

  def size(method: str, **settings: int) -> float:
    sampling = distillation_config.Sampling(
      method, **{'entries': entries, **settings}
    )
    drawn = draw(logits_NV[None], number_N[None], sampling)
    weights = drawn.values_BLT if drawn.counts_BLT is None else drawn.counts_BLT
    targets = record.Targets(
      np.asarray(drawn.ids_BLT[0]), np.asarray(weights[0])
    )
    form = record.form_of(sampling, logits_NV.shape[-1])
    return record.bytes_per_token(targets, form)[1]

  wanted = size('systematic', draws=distill.DRAWS)
  found = {
    'full': {'entries': experiment.model.vocab_size},
    'systematic': {'draws': distill.DRAWS, 'entries': entries},
  }
  for method, name, least in (
    ('gumbel', 'draws', 12),
    ('multinomial', 'draws', 2),
    ('top_k', 'k', 1),
  ):
    value = _nearest(
      lambda n, method=method, name=name: size(method, **{name: n}),
      wanted,
      range(least, entries + 1),
    )
    found[method] = {name: value, 'entries': entries}
  return found


def _nearest(
  size: Callable[[int], float], wanted: float, choices: range
) -> int:
  """Returns the choice whose size is nearest; sizes rise with the choice."""
  low, high = choices[0], choices[-1]
  while high - low > 1:
    middle = (low + high) // 2
    if size(middle) <= wanted:
      low = middle
    else:
      high = middle
  return min((low, high), key=lambda n: abs(size(n) - wanted))


def _logits(
  path: str, experiment: experiment_lib.Experiment
) -> tuple[np.ndarray, np.ndarray]:
  """Returns the teacher's logits of the first tokens, and their numbers."""
  teacher = load.from_workdir(path)
  data = experiment.data
  (source,) = texts_lib.read(experiment)
  model = transformer.Transformer(teacher.config)
  variables = {'params': teacher.params}

  @jax.jit
  def logits(batch):
    hidden_BLD = batches.hidden(model, variables, batch)
    return model.apply(variables, hidden_BLD, method='logits')

  found, numbers, count = [], [], 0
  for windows in teach.read_batches(
    source.training, data.length, data.batch, 0.25
  ):
    is_new_BL = (windows.number_BL >= 0) & (windows.batch.weight_BL > 0)
    found.append(np.asarray(logits(windows.batch))[is_new_BL])
    numbers.append(windows.number_BL[is_new_BL])
    count += len(numbers[-1])
    if count >= _TOKENS:
      break
  logits_NV = np.concatenate(found)[:_TOKENS]
  return logits_NV, np.concatenate(numbers)[:_TOKENS].astype(np.uint32)
