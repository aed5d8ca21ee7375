"""Starts commands in fresh processes, and notes when they are of use."""

from collections.abc import Callable
from collections.abc import Sequence
import os
import pathlib
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from typing import Any
from typing import NamedTuple
import urllib.request

from kaiju_jax.reporting import report

_ROOT = pathlib.Path(__file__).resolve().parents[3]
_TIMEOUT_S = 600
_WAITED_FOR = {
  'train': 'first step',
  'generate': 'first token',
  'serve': 'readiness',
}
_SMALL = (
  '--config.model.layout=G0',
  '--config.model.d_model=32',
  '--config.model.d_ff=32',
  '--config.data.length=64',
)
# {command: {contender: (processor, wall) seconds of each round}}.
Found = dict[str, dict[str, list[tuple[float, float]]]]


class Contender(NamedTuple):
  """One way to start."""

  root: pathlib.Path  # Root of the checkout.
  cached: bool  # Whether a compilation cache is in use.
  emptied: bool = False  # Whether that cache is emptied before each start.


def measure(settings: Any) -> tuple[report.Report, Found]:
  """Returns a table per command, and the seconds; the settings are `Settings`.

  Raises:
    RuntimeError: a command ended before it was of use.
  """
  contenders = {'first start': Contender(_ROOT, cached=True, emptied=True)}
  if not settings.rehearse:
    contenders['later start'] = Contender(_ROOT, cached=True)
  if settings.before is not None:
    before = pathlib.Path(settings.before).resolve()
    contenders = {'before': Contender(before, cached=False), **contenders}
  page, found = report.Report(), {}
  with tempfile.TemporaryDirectory() as name:
    folder = pathlib.Path(name)
    for script in settings.command:
      found[script] = _measure(script, contenders, folder, settings)
      page.add(_table(script, found[script], settings.repeats))
  return page, found


def _measure(script, contenders, folder, settings):
  trained = {}
  if script == 'generate':
    for root in {contender.root for contender in contenders.values()}:
      trained[root] = folder / f'trained-{len(trained)}'
      subprocess.run(
        _train(root, trained[root], 1, settings.rehearse),
        cwd=root,
        env=_environment(None),
        check=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        timeout=_TIMEOUT_S,
      )
  measured = {name: [] for name in contenders}
  for _ in range(settings.repeats):
    for name, (root, cached, emptied) in contenders.items():
      cache = folder / 'cache' if cached else None
      if emptied:
        shutil.rmtree(cache, ignore_errors=True)
      workdir = folder / 'workdir'
      is_there = None
      if script == 'train':
        words = _train(root, workdir, 800, settings.rehearse)
        is_there = _is_written(workdir / 'metrics.jsonl')
      elif script == 'serve':
        port = _free_port()
        model = pathlib.Path(settings.model).resolve()
        words = [f'--model={model}', f'--port={port}', f'--folder={workdir}']
        words, is_there = _script('serve', *words), _is_ready(port)
      else:
        model = f'--model={trained[root]}'
        words = _script('generate', model, '--prompt=def ', '--max_tokens=200')
      seconds = _seconds(words, _environment(cache), root, is_there)
      measured[name].append(seconds)
      shutil.rmtree(workdir, ignore_errors=True)
  return measured


def _script(name: str, *words: str) -> list[str]:
  return [sys.executable, '-m', f'experiments.{name}', *words]


def _train(root, workdir, steps: int, is_small: bool) -> list[str]:
  return _script(
    'train',
    f'--config={root / "experiments/configs/tiny.py"}',
    f'--workdir={workdir}',
    f'--config.loop.steps={steps}',
    '--config.loop.log_every=1',
    *(_SMALL if is_small else ()),
  )


def _environment(cache: pathlib.Path | None) -> dict[str, str]:
  """Returns the environment of a start; without a cache, none is in use."""
  kept = {
    name: value
    for name, value in os.environ.items()
    if not name.startswith(('JAX_', 'PYTHONPATH'))
  }
  if cache is None:
    return kept | {'JAX_ENABLE_COMPILATION_CACHE': 'false'}
  return kept | {'XDG_CACHE_HOME': str(cache)}


def _is_written(path: pathlib.Path) -> Callable[[], bool]:
  return lambda: path.exists() and path.stat().st_size > 0


def _free_port() -> int:
  with socket.socket() as one:
    one.bind(('127.0.0.1', 0))
    return one.getsockname()[1]


def _is_ready(port: int) -> Callable[[], bool]:
  def is_ready() -> bool:
    try:
      with urllib.request.urlopen(f'http://127.0.0.1:{port}/readyz') as answer:
        return answer.status == 200
    except OSError:
      return False

  return is_ready


def _seconds(
  words: Sequence[str],
  environment: dict[str, str],
  root: pathlib.Path,
  is_there: Callable[[], bool] | None,
) -> tuple[float, float]:
  """Returns (processor, wall) seconds from a start to what is waited for.

  With `is_there=None` that is the first character on stdout.
  """
  started = time.monotonic()
  process = subprocess.Popen(
    words,
    cwd=root,
    env=environment,
    stdout=subprocess.PIPE,
    stderr=subprocess.DEVNULL,
  )
  try:
    if is_there is None:
      if not process.stdout.read(1):
        raise RuntimeError(f'{words}: ended without a character.')
    else:
      while not is_there():
        if process.poll() is not None:
          raise RuntimeError(f'{words}: ended with {process.returncode}.')
        time.sleep(0.01)
    return _processor_seconds(process.pid), time.monotonic() - started
  finally:
    process.kill()
    process.wait()
    process.stdout.close()


def _processor_seconds(pid: int) -> float:
  """Returns user and system seconds of a process, all its threads together."""
  text = pathlib.Path(f'/proc/{pid}/stat').read_text()
  # The name, in brackets, may hold spaces; user and system time are the 14th
  # and 15th fields, and the name is the second.
  user, system = text.rpartition(')')[2].split()[11:13]
  return (int(user) + int(system)) / os.sysconf('SC_CLK_TCK')


def _table(script: str, measured, repeats: int) -> report.Table:
  rows, base = [], None
  for name, pairs in measured.items():
    processor, wall = map(statistics.median, zip(*pairs))
    base = base or processor
    share = f'{processor / base:.0%}'
    rows.append((name, f'{processor:.1f}', f'{wall:.1f}', share))
  return report.Table(
    rows,
    ('', 'processor', 'wall', 'of the first line'),
    f'experiments.{script}: seconds to its {_WAITED_FOR[script]}, medians of'
    f' {repeats}',
  )
