"""The plan of the house: who may import whom, and how long files may be."""

import ast
import collections
import graphlib

import numpy as np
import pytest

from tests import source_files

# From the ground up; a package may import those of lower floors, and on its own
# floor itself alone.
FLOORS = [
  {'storage', 'visibility', 'sharding'},
  {'reporting', 'quantization'},
  {'data'},
  {'wire', 'characters'},
  {'model'},
  {'distillation'},
  {'objectives'},
  {'training', 'decoding', 'interchange', 'costs'},
  {'aot', 'serving', 'synthesis'},
  {'evaluation', 'fleet'},
  {'tasks'},
  {'runs'},
  {'classifiers', 'gates'},
  {'alignment', 'app'},
  {'experiments'},
]
# The same inside rooms: their sub-rooms, from the ground up.
SUB_FLOORS = {
  'decoding': [{'requests', 'pages'}, {'device'}, {'beam'}, {'engine'}],
  'serving': [
    {'safety', 'stores', 'http'},
    {'replies'},
    {'drift'},
    {'routing'},
    {'routes'},
  ],
  'characters': [{'cards'}, {'prompts'}],
}
FLOOR = {room: n for n, rooms in enumerate(FLOORS) for room in rooms}
# kernels/ takes arrays and is open to all; a slice's figures are plain data.
OPEN = {'kernels'}
ALLOWED = {
  *((source_files.DATA, room) for room in ('costs', 'sharding')),
  *(
    (room, source_files.DATA)
    for room in ('aot', 'fleet', 'runs', 'app', 'experiments')
  ),
}
LINES, FUNCTION_LINES = 450, 80
# What the house may weigh: files, lines of code (neither blank, comment nor
# docstring), and lines of docstrings. A change of a number is a commit of its
# own that says why.
BUDGET = {'product': (840, 87_100, 26_500), 'tests': (684, 79_350, 3_450)}
FOLDER_FILES = {'experiments': 47, 'experiments/studies': 29}  # Others have 25.
# Names of one class of the whole house; elsewhere a name says its difference.
ONCE = {'Conversation', 'Message', 'Reply', 'Session', 'Stream', 'Turn'}
COMMAND_LINES = 80
LONG_COMMANDS = {'experiments/benchmarks/corpora.py'}  # Until it follows.


def modules(tree):
  """Yields the dotted names that a file imports, in functions too."""
  for node in ast.walk(tree):
    if isinstance(node, ast.ImportFrom) and node.module:
      yield from (f'{node.module}.{alias.name}' for alias in node.names)
    elif isinstance(node, ast.Import):
      yield from (alias.name for alias in node.names)


def imported(tree):
  """Yields the rooms that a file imports."""
  for name in modules(tree):
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
    for room, name, tree in source_files.sources()
    for other in imported(tree)
    if room != '__init__' and not is_allowed(room, other)
  }
  assert not up, sorted(up)


def parts_of_rooms():
  """Yields (room, part, other part, words): arrows inside one room.

  A part is a sub-room, or a module that lies loose in the room.
  """
  for room, name, tree in source_files.sources():
    if not name.startswith(f'kaiju_jax/{room}/'):
      continue
    part = name.removesuffix('.py').split('/')[2]
    for module in modules(tree):
      package, other_room, *inside = [*module.split('.'), '', ''][:4]
      other = inside[0]
      if (package, other_room) == ('kaiju_jax', room) and other != part:
        yield room, part, other, f'{name} imports {module}'


def test_arrows_between_sub_rooms_point_down():
  floors = {
    room: {name: n for n, names in enumerate(rooms) for name in names}
    for room, rooms in SUB_FLOORS.items()
  }
  for room, floor in floors.items():
    folders = (source_files.ROOT / 'kaiju_jax' / room).glob('*/__init__.py')
    assert {path.parent.name for path in folders} == set(floor), room
  up = [
    words
    for room, part, other, words in parts_of_rooms()
    if room in floors and floors[room].get(other, -1) >= floors[room][part]
  ]
  assert not up, up


def test_no_parts_of_a_room_import_one_another():
  arrows = collections.defaultdict(set)
  for room, part, other, _ in parts_of_rooms():
    if part != '__init__':
      arrows[room, part].add((room, other))
  try:
    graphlib.TopologicalSorter(arrows).prepare()
  except graphlib.CycleError as error:
    raise AssertionError(f'a circle: {error.args[1]}') from None


def imported_files(name, tree):
  """Yields the files of the package that a file imports, in functions too."""
  for node in ast.walk(tree):
    if not isinstance(node, ast.ImportFrom):
      continue
    if node.level:
      folder = source_files.ROOT.joinpath(name).parents[node.level - 1]
    else:
      folder = source_files.ROOT
    for part in (node.module or '').split('.'):
      folder = folder / part
    for alias in node.names:
      for path in (folder / f'{alias.name}.py', folder.with_suffix('.py')):
        path = path.resolve()
        if path.is_file() and path != (source_files.ROOT / name).resolve():
          yield str(path.relative_to(source_files.ROOT))
          break


def test_no_files_import_one_another():
  arrows = {
    name: set(imported_files(name, tree))
    for _, name, tree in source_files.sources()
  }
  assert sum(map(len, arrows.values())) > 1_000  # It sees them.
  try:
    graphlib.TopologicalSorter(arrows).prepare()
  except graphlib.CycleError as error:
    raise AssertionError(f'a circle: {error.args[1]}') from None


def test_one_module_lies_loose_and_every_room_has_a_floor():
  package = source_files.ROOT / 'kaiju_jax'
  assert {p.stem for p in package.glob('*.py')} == {'__init__', 'visibility'}
  rooms = {p.parent.name for p in package.glob('*/__init__.py')}
  assert rooms - OPEN - {source_files.DATA} <= set(FLOOR)


def test_one_module_defines_flags():
  """By `DEFINE_…`; a parser of --config alone is not a command's flag."""
  found = [
    f'{name}:{node.lineno}'
    for _, name, tree in source_files.sources()
    for node in ast.walk(tree)
    if isinstance(node, ast.Attribute)
    and node.attr.startswith('DEFINE_')
    and node.attr != 'DEFINE_config_file'
    and name != 'kaiju_jax/runs/flags.py'
  ]
  assert not found, found


def test_a_command_is_short_and_says_what_it_does():
  """Its docstring's first line, which `kaiju` lists, is no question."""
  wrong = []
  for _, name, tree in source_files.sources():
    lines = (source_files.ROOT / name).read_text().splitlines()
    if not name.startswith('experiments/') or not any(
      line.startswith(('  command.run(main', '  command_lib.run(main'))
      for line in lines
    ):
      continue
    first = ast.get_docstring(tree).splitlines()[0]
    if len(lines) > COMMAND_LINES and name not in LONG_COMMANDS:
      wrong.append(f'{name}: {len(lines)} lines')
    if '?' in first or not first.endswith('.'):
      wrong.append(f'{name}: {first}')
  assert not wrong, wrong


@pytest.mark.parametrize(
  'package, importers',
  [
    ('rich', {'reporting/report.py', 'training/progress.py'}),
    ('matplotlib', {'reporting/figures.py'}),
  ],
)
def test_who_alone_imports_a_package(package, importers):
  found = {
    name.removeprefix('kaiju_jax/')
    for _, name, tree in source_files.sources()
    for module in modules(tree)
    if module.split('.')[0] == package
  }
  assert found == importers


def test_who_alone_types_a_table_in_markdown():
  found = {
    name
    for _, name, tree in source_files.sources()
    for node in ast.walk(tree)
    if isinstance(node, ast.Constant)
    and isinstance(node.value, str)
    and '---|' in node.value
  }
  assert found == {'kaiju_jax/reporting/report.py'}


def test_files_and_functions_are_short():
  long = []
  for room, name, tree in source_files.sources():
    lines = len((source_files.ROOT / name).read_text().splitlines())
    if room != 'kernels' and lines > LINES:
      long.append(f'{name}: {lines} lines')
    for node in ast.walk(tree):
      if room == 'kernels' or not isinstance(node, ast.FunctionDef):
        continue
      lines = node.end_lineno - node.lineno + 1
      if lines > FUNCTION_LINES:
        long.append(f'{name}: {node.name} has {lines} lines')
  assert not long, long


def test_the_engine_hands_out_none_of_its_private_methods():
  """Calls return records; a private method is called by its own class alone."""
  handed = []
  for _, name, tree in source_files.sources():
    if not name.startswith('kaiju_jax/decoding/engine/'):
      continue
    for one in ast.walk(tree):
      if not isinstance(one, ast.ClassDef):
        continue
      private = {
        x.name
        for x in one.body
        if isinstance(x, ast.FunctionDef)
        and x.name.startswith('_')
        and not x.decorator_list
      }
      called = {id(x.func) for x in ast.walk(one) if isinstance(x, ast.Call)}
      handed += [
        f'{name}: {one.name}.{x.attr}'
        for x in ast.walk(one)
        if isinstance(x, ast.Attribute)
        and x.attr in private
        and id(x) not in called
      ]
  assert not handed, handed


def weigh(text, tree):
  """Returns a file's lines of code, and of docstrings."""
  docs = set()
  for node in ast.walk(tree):
    if isinstance(
      node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
    ) and ast.get_docstring(node):
      docs |= {*range(node.body[0].lineno, node.body[0].end_lineno + 1)}
  lines = [
    line.lstrip()
    for number, line in enumerate(text.splitlines(), 1)
    if number not in docs
  ]
  code = sum(bool(line) and not line.startswith('#') for line in lines)
  return np.array([1, code, len(docs)])


def test_a_file_is_weighed_by_its_code():
  text = '"""Two\n\nlines."""\n\n# No.\nx = 1\n\n\ndef f():\n  """One."""\n'
  assert weigh(text, ast.parse(text)).tolist() == [1, 2, 4]


def test_the_house_stays_within_its_budget():
  weights = {
    'product': sum(
      weigh((source_files.ROOT / name).read_text(), tree)
      for _, name, tree in source_files.sources()
    ),
    'tests': sum(
      weigh(text := path.read_text(), ast.parse(text))
      for path in (source_files.ROOT / 'tests').rglob('*.py')
    ),
  }
  heavy = {
    name: (weight.tolist(), BUDGET[name])
    for name, weight in weights.items()
    if (weight > BUDGET[name]).any()
  }
  assert not heavy, heavy


def test_a_folder_can_be_looked_through():
  counts = collections.Counter(
    name.rpartition('/')[0] for _, name, _ in source_files.sources()
  )
  assert not {x for x, n in counts.items() if n > FOLDER_FILES.get(x, 25)}


def test_a_class_name_stands_once_per_folder():
  found = collections.defaultdict(list)
  for _, name, tree in source_files.sources():
    for node in tree.body:
      if isinstance(node, ast.ClassDef) and not node.name.startswith('_'):
        if node.name == 'Settings' and name.startswith('experiments/'):
          continue  # A command's flags.
        found[name.rpartition('/')[0], node.name].append(name)
        if node.name in ONCE:
          found['the house', node.name].append(name)
  twice = {key: names for key, names in found.items() if len(names) > 1}
  assert not twice, twice


def test_no_test_imports_another():
  wrong = {
    f'{path.name} imports {module}'
    for path in (source_files.ROOT / 'tests').rglob('*.py')
    for module in modules(ast.parse(path.read_text()))
    if module.startswith('tests.') and '.test_' in module
  }
  assert not wrong, wrong
