"""Lists the commands by purpose, and runs one.

    kaiju                    python -m experiments
    kaiju COMMAND …          python -m experiments.COMMAND …
    kaiju COMMAND --help     what it does, and its flags

A command's line in the list is the first line of its module's docstring. Where
a command takes --config, it is the name of a file of `configs/`, or a path, and
an arm behind a colon: --config=tiny:bf16.
"""

import difflib
import pathlib
import runpy
import sys

PURPOSES = {
  'train': (
    'train',
    'ablate',
    'runs',
    'compare',
    'rates',
    'critical_batch',
    'scaling',
    'uptrain',
  ),
  'data': (
    'texts',
    'tokenize',
    'mix',
    'select',
    'overlap',
    'rows',
    'synthesize',
    'facts',
  ),
  'distil': ('teach', 'distill'),
  'align': (
    'align',
    'train_gate',
    'train_head',
    'refusal',
    'feedback',
  ),
  'serve': (
    'serve',
    'operate',
    'drift',
    'generate',
    'calibrate',
    'convert',
  ),
  'evaluate': (
    'needle',
    'agreement',
    'chat_facts',
    'persona',
    'judge',
    'gate',
    'recall',
    'promote',
    'harness',
  ),
  'plan': (
    'describe',
    'aot_report',
    'replay',
    'fleet',
    'economics',
  ),
  'measure': (
    'codecs',
    'benchmarks.attention',
    'benchmarks.corpora',
    'benchmarks.decode',
    'benchmarks.device',
    'benchmarks.kernels',
    'benchmarks.restart',
    'benchmarks.serve',
    'benchmarks.soak',
    'benchmarks.startup',
    'benchmarks.step',
    'benchmarks.teach',
  ),
}
COMMANDS = tuple(name for names in PURPOSES.values() for name in names)
_FOLDER = pathlib.Path(__file__).parent


def line(name: str) -> str:
  """Returns the first line of a command's docstring, which is not imported."""
  path = _FOLDER.joinpath(*name.split('.'))
  file = path / '__main__.py' if path.is_dir() else path.with_suffix('.py')
  with file.open(encoding='utf-8') as text:
    return text.readline().lstrip('r').strip().strip('"')


def index() -> str:
  """Returns the list of all commands."""
  width = max(map(len, COMMANDS))
  lines = ['kaiju COMMAND [--help]', '']
  for purpose, names in PURPOSES.items():
    lines.append(purpose)
    lines += [f'  {name:{width}}  {line(name)}' for name in names]
  return '\n'.join(lines)


def main() -> None:
  """Runs the command that the first argument names, or prints the list."""
  name, *words = sys.argv[1:] or ['--help']
  if name in ('-h', '--help', 'help'):
    print(index())
    return
  if name not in COMMANDS:
    near = difflib.get_close_matches(name, COMMANDS, 3)
    near = f' Did you mean {" or ".join(near)}?' if near else ''
    sys.exit(f'error: {name!r} is no command.{near} `kaiju` lists them all.')
  sys.argv[:] = [name, *words]
  runpy.run_module(f'{__package__}.{name}', run_name='__main__', alter_sys=True)


if __name__ == '__main__':
  main()
