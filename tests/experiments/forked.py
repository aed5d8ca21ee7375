"""Many commands at the price of one start: each runs in a fork of a process.

What every command imports (absl, ml_collections, rich, `runs.command`: half a
second, and much more on a busy machine) is imported once, and so is what a
caller adds. The process stays for the callers that follow.
"""

import atexit
from collections.abc import Sequence
import functools
import itertools
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
import contextlib, importlib, json, os, runpy, sys, tempfile, traceback
import absl.app, absl.flags, absl.logging, ml_collections.config_flags
import rich.console, rich.table, rich.progress
from kaiju_jax.runs import command
from kaiju_jax.runs import configs

def run(words):
  sys.argv = list(words)
  runpy.run_module(words[0], run_name='__main__', alter_sys=True)

def imported(name):
  module = importlib.import_module(name)
  is_folder = hasattr(module, '__path__')
  return importlib.import_module(f'{name}.__main__') if is_folder else module

def parse(words):
  from absl import flags
  sys.argv = list(words)
  module = imported(words[0])
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

def answer(mode, words, environment):
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

assert 'jax' not in sys.modules
for name in sys.argv[1:]:
  importlib.import_module(name)
answers = os.fdopen(os.dup(1), 'w')
for line in sys.stdin:
  mode, commands, environment = json.loads(line)
  if mode == 'run':
    answer(mode, *commands, environment)
    continue
  pid = os.fork()  # One that imports the module of all these commands.
  if not pid:
    with contextlib.suppress(BaseException):  # Each command meets it again.
      imported(commands[0][0])
    for words in commands:
      answer(mode, words, environment)
    os._exit(0)
  os.waitpid(pid, 0)
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
      module defines all of them. Commands of a module that follow each other
      import it once.
    environment: added to this process's own.
    python: an interpreter and its options.
    folder: where they run.
    imported: modules that are imported once before all, such as `JAX`;
      `Done.jax` then says nothing.
  """
  server = _server(tuple(python), folder, tuple(imported))
  environment = {**os.environ, **(environment or {})}
  found = []
  groups = [[list(words)] for words in commands]
  if mode == 'parse':
    by_module = itertools.groupby(commands, key=lambda words: words[0])
    groups = [[list(words) for words in some] for _, some in by_module]
  for group in groups:
    print(json.dumps([mode, group, environment]), file=server.stdin)
    server.stdin.flush()
    for _ in group:
      answer = server.stdout.readline()
      assert answer, f'{python} ended: {server.poll()}'
      status, out, err, jax = json.loads(answer)
      found.append(Done(status, out, err, jax.strip() == 'True'))
  return found
