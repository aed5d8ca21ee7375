"""Many commands at the price of one start: each runs in a fork of a process.

What every command imports (absl, ml_collections, rich, `runs.command`: half a
second, and much more on a busy machine) is imported once, and so is what a
caller adds. The process stays for the callers that follow.
"""

import atexit
from collections.abc import Sequence
import functools
import json
import os
import pathlib
import subprocess
import sys
from typing import NamedTuple

ROOT = pathlib.Path(__file__).parents[2]
# Imports that would cost each command another second or two, where it meets jax
# before it sees a mistake: jax, and modules of ours that import most others. No
# device is initialized by an import, so that a fork may initialize its own.
JAX = (
  'jax.numpy',
  'flax.linen',
  'optax',
  'kaiju_jax.alignment.rounds',
  'kaiju_jax.data.curation.selection',
  'kaiju_jax.tasks.recall.asking',
  'kaiju_jax.app.server_folder',
  'kaiju_jax.experiments.studies.sweeps.rates',
)
_SERVER = """
import importlib, json, os, runpy, sys, tempfile, traceback
import absl.app, absl.flags, absl.logging, ml_collections.config_flags
import rich.console, rich.table, rich.progress
from kaiju_jax.runs import command
from kaiju_jax.runs import configs

def run(words):
  sys.argv = list(words)
  runpy.run_module(words[0], run_name='__main__', alter_sys=True)

def parse(words):
  from absl import flags
  sys.argv = list(words)
  module = importlib.import_module(words[0])
  if hasattr(module, '__path__'):
    module = importlib.import_module(f'{words[0]}.__main__')
  if command in vars(module).values():
    words = configs.named_configs(words)
  left = flags.FLAGS(list(words), known_only=True)[1:]
  left = [word for word in left if not word.startswith('--config.')]
  if words[0] in ('experiments.runs', 'experiments.compare'):  # Take folders.
    left = [word for word in left if word.startswith('-')]
  sys.exit(f'no such flags: {left}' if left else 0)

def child(mode, words, environment, files):
  os.environ.clear()
  os.environ.update(environment)
  for number, file in zip((1, 2), files):
    os.dup2(file.fileno(), number)
  try:
    globals()[mode](words)
    status = 0
  except SystemExit as end:
    status = end.code or 0
    if not isinstance(status, int):
      print(status, file=sys.stderr)
      status = 1
  except BaseException:
    traceback.print_exc()
    status = 1
  print('jax' in sys.modules, file=files[2], flush=True)
  sys.stdout.flush()
  sys.stderr.flush()
  os._exit(status)

assert 'jax' not in sys.modules
for name in sys.argv[1:]:
  importlib.import_module(name)
answers = os.fdopen(os.dup(1), 'w')
for line in sys.stdin:
  mode, words, environment = json.loads(line)
  with tempfile.TemporaryFile('w+') as out, tempfile.TemporaryFile('w+') as err:
    with tempfile.TemporaryFile('w+') as jax:
      files = out, err, jax
      pid = os.fork()
      if not pid:
        child(mode, words, environment, files)
      status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
      for file in files:
        file.seek(0)
      said = [file.read() for file in files]
  print(json.dumps([status, *said]), file=answers, flush=True)
"""


class Done(NamedTuple):
  """What a command left.

  Attributes:
    returncode: its exit status.
    stdout, stderr: what it printed.
    jax: whether it imported jax.
  """

  returncode: int
  stdout: str
  stderr: str
  jax: bool


@functools.cache
def _server(python, folder, imported):
  """Returns a process that runs what it reads; it ends with this one."""
  process = subprocess.Popen(
    [*python, '-c', _SERVER, *imported],
    cwd=folder,
    stdin=subprocess.PIPE,
    stdout=subprocess.PIPE,
    text=True,
  )
  atexit.register(process.communicate)
  return process


def run(
  commands: Sequence[Sequence[str]],
  mode: str = 'run',
  environment: dict[str, str] | None = None,
  python: Sequence[str] = (sys.executable,),
  folder: pathlib.Path = ROOT,
  imported: Sequence[str] = (),
) -> list[Done]:
  """Runs commands one after another.

  Args:
    commands: each a module and its arguments.
    mode: 'run', or 'parse' to read the flags and stop: status 0 where the
      module defines all of them.
    environment: added to this process's own.
    python: an interpreter and its options.
    folder: where they run.
    imported: modules that are imported once before all, such as `JAX`;
      `Done.jax` then says nothing.
  """
  server = _server(tuple(python), folder, tuple(imported))
  environment = {**os.environ, **(environment or {})}
  found = []
  for words in commands:
    print(json.dumps([mode, list(words), environment]), file=server.stdin)
    server.stdin.flush()
    answer = server.stdout.readline()
    assert answer, f'{python} ended: {server.poll()}'
    status, out, err, jax = json.loads(answer)
    found.append(Done(status, out, err, jax.strip() == 'True'))
  return found
