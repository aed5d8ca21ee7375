"""How often each computation of a program runs in one call of it.

A loop's body stands once in the text and runs as often as its trip count says.
The GPU's and the CPU's compilers note it (`known_trip_count`); for a TPU it is
read off the loop itself:

    start   the induction variable's element of the tuple that enters
    step    what the body adds to it
    stop    what the condition compares it with

Constants that a loop carries along unchanged, as TPU programs do, count as
constants. A conditional's branches count as if each ran: an upper bound.
"""

from collections.abc import Mapping
import dataclasses
import math
import re

from kaiju_jax.hlo import text as text_lib

_KNOWN = re.compile(r'"known_trip_count":\{"n":"(\d+)"')
# These stand for a computation that they do not run themselves.
_SILENT = ('-done', '-update')
_SAME = ('copy', 'bitcast', 'convert', 'reshape', 'copy-done')


@dataclasses.dataclass(frozen=True)
class Executions:
  """How often what runs.

  Attributes:
    times: by computation; those that never run are missing.
    callers: the (computation, instruction) that a computation is run by.
    unread: loops whose trip count could not be read; their bodies count once.
  """

  times: Mapping[str, int]
  callers: Mapping[str, tuple[str, str]]
  unread: tuple[str, ...]


def executions(module: text_lib.Module) -> Executions:
  """Returns how often each computation runs in one call of the program."""
  times, callers, unread = {}, {}, []

  def visit(name: str, count: int, known: Mapping[int, int]):
    times[name] = times.get(name, 0) + count
    computation = module.computations[name]
    for instruction in computation.instructions.values():
      for callee, repeats, constants in _callees(
        module, computation, instruction, known, unread
      ):
        callers[callee] = name, instruction.name
        visit(callee, count * repeats, constants)

  visit(module.entry, 1, {})
  return Executions(times, callers, tuple(dict.fromkeys(unread)))


def _callees(module, computation, instruction, known, unread):
  """Yields what an instruction runs: (computation, times, its constants)."""
  opcode = instruction.opcode
  if opcode == 'while':
    (body,) = instruction.computations('body')
    (condition,) = instruction.computations('condition')
    constants = _carried(module, computation, instruction, body, known)
    trips = _trips(
      module, computation, instruction, body, condition, known, constants
    )
    if trips is None:
      unread.append(instruction.name)
      trips = 1
    yield body, trips, constants
    yield condition, trips + 1, constants
  elif not opcode.endswith(_SILENT):
    for name in (
      'calls',
      'branch_computations',
      'true_computation',
      'false_computation',
      'called_computations',
    ):
      for callee in instruction.computations(name):
        yield callee, 1, {}
    if opcode == 'call':
      for callee in instruction.computations('to_apply'):
        yield callee, 1, {}


def _trips(module, computation, loop, body, condition, known, constants):
  noted = _KNOWN.search(loop.attributes)
  if noted:
    return int(noted.group(1))
  test = _Values(module, condition, constants).root()
  if not (isinstance(test, tuple) and test[0] == 'compare'):
    return None
  _, direction, left, right = test
  if not (isinstance(left, tuple) and left[0] == 'element'):
    return None
  index = left[1]
  start = _entering(module, computation, loop, known, index)
  step = _Values(module, body, constants).element(index)
  if not isinstance(start, int) or not isinstance(right, int):
    return None
  if not (isinstance(step, tuple) and step[:2] == ('plus', left)):
    return None
  return _count(start, right, step[2], direction)


def _count(start: int, stop: int, step: int, direction: str) -> int | None:
  if direction in ('GT', 'GE'):
    start, stop, step = -start, -stop, -step
    direction = {'GT': 'LT', 'GE': 'LE'}[direction]
  if direction == 'LE':
    stop, direction = stop + 1, 'LT'
  if direction not in ('LT', 'NE') or step <= 0:
    return None
  return max(0, math.ceil((stop - start) / step))


def _entering(module, computation, loop, known, index):
  """Returns the value that enters a loop as its tuple's element."""
  values = _Values(module, computation.name, known)
  return values.of(loop.operands[0], index)


def _carried(module, computation, loop, body, known) -> dict[int, int]:
  """Returns the constants of a loop's tuple that its body leaves alone."""
  constants = {}
  for index in range(len(loop.type)):
    if _Values(module, body, {}).element(index) == ('element', index):
      value = _entering(module, computation, loop, known, index)
      if isinstance(value, int):
        constants[index] = value
  return constants


class _Values:
  """What scalars of a computation are, as far as its text says.

  An int; ('element', i) of the tuple that is the computation's parameter;
  ('plus', x, constant); ('compare', direction, x, y); or None.
  """

  def __init__(self, module, name, known, arguments=None):
    self._module = module
    self._computation = module.computations[name]
    self._known = known
    self._arguments = arguments

  def root(self):
    return self.of(self._computation.root)

  def element(self, index: int):
    return self.of(self._computation.root, index)

  def of(self, name: str, index: int | None = None):
    """Returns a value, or that of an element of a tuple."""
    x = self._computation.instructions[name]
    if x.opcode == 'tuple' and index is not None:
      return self.of(x.operands[index])
    if x.opcode == 'parameter':
      return self._parameter(int(x.literal), index)
    if x.opcode == 'get-tuple-element' and index is None:
      return self.of(x.operands[0], int(x.attribute('index')))
    if index is not None:
      return self.of(x.operands[0], index) if x.opcode in _SAME else None
    if x.opcode == 'constant':
      return int(x.literal) if re.fullmatch(r'-?\d+', x.literal) else None
    if x.opcode in _SAME:
      return self.of(x.operands[0])
    if x.opcode in ('fusion', 'call'):
      return self._called(x)
    if x.opcode in ('add', 'subtract'):
      return _plus(*map(self.of, x.operands), x.opcode)
    if x.opcode == 'compare':
      return 'compare', x.attribute('direction'), *map(self.of, x.operands)
    return None

  def _parameter(self, number: int, index: int | None):
    if self._arguments is not None:
      return self._arguments(number, index)
    if index is None:
      return None
    return self._known.get(index, ('element', index))

  def _called(self, x):
    names = x.computations('calls') or x.computations('to_apply')
    if len(names) != 1:
      return None
    inner = _Values(
      self._module,
      names[0],
      {},
      lambda number, index: self.of(x.operands[number], index),
    )
    return inner.root()


def _plus(left, right, opcode):
  if opcode == 'subtract':
    if not isinstance(right, int):
      return None
    right = -right
  if isinstance(left, int) and isinstance(right, int):
    return left + right
  if isinstance(left, int):
    left, right = right, left
  if isinstance(left, tuple) and isinstance(right, int):
    return 'plus', left, right
  return None
