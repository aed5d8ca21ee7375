"""The plan of the house: who may import whom, and how long files may be."""

import ast
import functools
import pathlib

ROOT = pathlib.Path(__file__).parents[1]
# From the ground up; a package may import those of lower floors, and on its own
# floor itself alone.
FLOORS = [
  {'storage', 'visibility', 'sharding'},
  {'quantization', 'data'},
  {'wire'},
  {'model'},
  {'distillation'},
  {'objectives'},
  {'training', 'decoding', 'interchange', 'costs'},
  {'aot', 'alignment', 'serving', 'synthesis'},
  {'evaluation', 'fleet'},
  {'runs'},
  {'experiments'},
]
FLOOR = {room: n for n, rooms in enumerate(FLOORS) for room in rooms}
# kernels/ takes arrays and is open to all; a slice's figures are plain data.
OPEN = {'kernels'}
DATA = 'tpu_gpu_configs'
ALLOWED = {
  *((DATA, room) for room in ('costs', 'sharding')),
  *((room, DATA) for room in ('aot', 'runs', 'experiments')),
}
LINES, FUNCTION_LINES = 450, 80


@functools.cache
def sources():
  """Returns (room, path, tree) of every file, tests aside."""
  found = []
  for folder in 'kaiju_jax', 'kernels', 'tpu_gpu_configs', 'experiments':
    for path in sorted((ROOT / folder).rglob('*.py')):
      parts = path.relative_to(ROOT).parts
      if parts[:2] == ('kaiju_jax', 'kernels'):
        continue  # The symbolic link, which newer Pythons follow.
      room = parts[1] if folder == 'kaiju_jax' else folder
      tree = ast.parse(path.read_text())
      name = str(path.relative_to(ROOT))
      found.append((room.removesuffix('.py'), name, tree))
  return found


def imported(tree):
  """Yields the rooms that a file imports anywhere, functions included."""
  for node in ast.walk(tree):
    names = []
    if isinstance(node, ast.ImportFrom) and node.module:
      names = [f'{node.module}.{alias.name}' for alias in node.names]
    elif isinstance(node, ast.Import):
      names = [alias.name for alias in node.names]
    for name in names:
      first, *rest = name.split('.')
      if first == 'kaiju_jax' and rest:
        yield rest[0]
      elif first in ('experiments', 'tests', 'tpu_gpu_configs'):
        yield first


def is_allowed(room, other):
  if room == other or other in OPEN or (room, other) in ALLOWED:
    return room != 'kernels' or other == 'kernels'
  return room in FLOOR and other in FLOOR and FLOOR[room] > FLOOR[other]


def test_arrows_point_down_and_none_loops():
  up = {
    f'{name} imports {other}'
    for room, name, tree in sources()
    for other in imported(tree)
    if room != '__init__' and not is_allowed(room, other)
  }
  assert not up, sorted(up)


def test_one_module_lies_loose_and_every_room_has_a_floor():
  package = ROOT / 'kaiju_jax'
  assert {p.stem for p in package.glob('*.py')} == {'__init__', 'visibility'}
  rooms = {p.parent.name for p in package.glob('*/__init__.py')}
  assert rooms - OPEN <= set(FLOOR)


def test_files_and_functions_are_short():
  long = []
  for room, name, tree in sources():
    lines = len((ROOT / name).read_text().splitlines())
    if room != 'kernels' and lines > LINES:
      long.append(f'{name}: {lines} lines')
    for node in ast.walk(tree):
      if room == 'kernels' or not isinstance(node, ast.FunctionDef):
        continue
      lines = node.end_lineno - node.lineno + 1
      if lines > FUNCTION_LINES:
        long.append(f'{name}: {node.name} has {lines} lines')
  assert not long, long
