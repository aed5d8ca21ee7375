"""How long do the commands take to their first step and their first token?

    python -m experiments.benchmarks.startup [--repeats=3] [--before=FOLDER]
    python -m experiments.benchmarks.startup --command=serve --model=FOLDER

Starts `experiments.train` on the tiny configuration and
`experiments.generate` on what it trained, each in a fresh process, and notes
the processor time (user and system seconds of all threads, which other work on
the machine changes little) and the wall time until the first record of
metrics.jsonl, or the first character on stdout, is there. `experiments.serve`
is there when /readyz says so. Contenders take turns:

    before       another checkout of the project, named by --before, without a
                 compilation cache
    first start  with a compilation cache that is empty
    later start  with the cache that the first start has filled

The process is killed once the time is noted. Linux alone (/proc).
"""

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

from absl import app
from absl import flags

from kaiju_jax.reporting import report
from kaiju_jax.runs import command
from kaiju_jax.storage import files

_REPEATS = flags.DEFINE_integer(
  'repeats', 3, 'Rounds, each starting every contender once.', lower_bound=1
)
_BEFORE = flags.DEFINE_string(
  'before', None, 'Root of another checkout, started with its own commands.'
)
_COMMANDS = flags.DEFINE_multi_enum(
  'command',
  ['train', 'generate'],
  ['train', 'generate', 'serve'],
  'Commands to start.',
)
_MODEL = flags.DEFINE_string('model', None, 'The model that is served.')
_JSON = flags.DEFINE_string('json', None, 'File that gets the seconds, too.')
_REHEARSE = flags.DEFINE_bool(
  'rehearse', False, 'Start once, with a small model: no figure to keep.'
)
_ROOT = pathlib.Path(__file__).resolve().parents[2]
_TIMEOUT_S = 600
_SMALL = (
  '--config.model.layout=G0',
  '--config.model.d_model=32',
  '--config.model.d_ff=32',
  '--config.data.length=64',
)


class Contender(NamedTuple):
  """One way to start.

  Attributes:
    root: root of the checkout.
    cached: whether a compilation cache is in use.
    emptied: whether that cache is emptied before each start.
  """

  root: pathlib.Path
  cached: bool
  emptied: bool = False


def main(argv: Sequence[str]) -> None:
  command.check(argv)
  if ('serve' in _COMMANDS.value) != bool(_MODEL.value):
    raise app.UsageError('--model and --command=serve need each other.')
  contenders = {
    'first start': Contender(_ROOT, cached=True, emptied=True),
    'later start': Contender(_ROOT, cached=True),
  }
  if _BEFORE.value is not None:
    before = pathlib.Path(_BEFORE.value).resolve()
    contenders = {'before': Contender(before, cached=False), **contenders}
  with tempfile.TemporaryDirectory() as folder:
    if _REHEARSE.value:
      contenders = {'first start': contenders['first start']}
    found = {}
    for script in dict.fromkeys(_COMMANDS.value):
      found[script] = _measured(script, contenders, pathlib.Path(folder))
      report.Report().add(_table(script, found[script])).show()
  if _JSON.value:
    files.write_json(pathlib.Path(_JSON.value), found)


def _measured(
  script: str, contenders: dict[str, Contender], folder: pathlib.Path
) -> dict[str, list[tuple[float, float]]]:
  """Returns each contender's (processor, wall) seconds, one per round."""
  trained = {}
  if script == 'generate':
    for root in {contender.root for contender in contenders.values()}:
      trained[root] = folder / f'trained-{len(trained)}'
      _wait(_train(root, trained[root], steps=1), _environment(None), root)
  measured = {name: [] for name in contenders}
  for number in range(_REPEATS.value):
    for name, contender in contenders.items():
      cache = folder / 'cache' if contender.cached else None
      if contender.emptied:
        shutil.rmtree(cache, ignore_errors=True)
      workdir = folder / f'{script}-{number}-{name}'.replace(' ', '-')
      if script == 'train':
        words = _train(contender.root, workdir, steps=800)
        record = workdir / 'metrics.jsonl'
        is_there = _is_written(record)
      elif script == 'serve':
        port = _free_port()
        model = pathlib.Path(_MODEL.value).resolve()
        words = [*_script('serve'), f'--model={model}', f'--port={port}']
        words += [f'--folder={workdir}']
        is_there = _is_ready(port)
      else:
        words = [
          *_script('generate'),
          f'--model={trained[contender.root]}',
        ]
        words += ['--prompt=def ', '--max_tokens=200']
        is_there = None
      measured[name].append(
        _seconds(words, _environment(cache), contender.root, is_there)
      )
      shutil.rmtree(workdir, ignore_errors=True)
  return measured


def _script(name: str) -> list[str]:
  return [sys.executable, '-m', f'experiments.{name}']


def _train(root: pathlib.Path, workdir: pathlib.Path, steps: int) -> list[str]:
  return [
    *_script('train'),
    f'--config={root / "experiments/configs/tiny.py"}',
    f'--workdir={workdir}',
    f'--config.loop.steps={steps}',
    '--config.loop.log_every=1',
    *(_SMALL if _REHEARSE.value else ()),
  ]


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


def _wait(words, environment, root) -> None:
  subprocess.run(
    words,
    cwd=root,
    env=environment,
    check=True,
    stdout=subprocess.DEVNULL,
    stderr=subprocess.DEVNULL,
    timeout=_TIMEOUT_S,
  )


def _seconds(
  words: Sequence[str],
  environment: dict[str, str],
  root: pathlib.Path,
  is_there: Callable[[], bool] | None,
) -> tuple[float, float]:
  """Returns (processor, wall) seconds from a start to what is waited for.

  With `is_there=None` that is the first character on stdout.

  Raises:
    RuntimeError: the process ended before; holds what it said.
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


def _table(script: str, measured: dict[str, list[tuple[float, float]]]) -> Any:
  what = {
    'train': 'first step',
    'generate': 'first token',
    'serve': 'readiness',
  }[script]
  rows, base = [], None
  for name, pairs in measured.items():
    processor, wall = map(statistics.median, zip(*pairs))
    base = base or processor
    rows.append(
      (name, f'{processor:.1f}', f'{wall:.1f}', f'{processor / base:.0%}')
    )
  return report.Table(
    rows,
    ('', 'processor', 'wall', 'of the first line'),
    f'experiments.{script}: seconds to its {what}, medians of {_REPEATS.value}',
  )


if __name__ == '__main__':
  command.run(main, compiles=False)
