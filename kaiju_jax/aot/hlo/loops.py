"""Counts how often each computation of a program runs in one call of it.

A loop's body is in the text once and runs as often as its trip count says. The
compilers for GPU and CPU note the count (`known_trip_count`). For a TPU this
module computes it from the loop:

    start   the induction variable's element of the tuple that enters
    step    what the body adds to it
    stop    what the condition compares it with

A constant that a loop carries along unchanged, as in TPU programs, counts as a
constant. All branches of a conditional count as if they ran: an upper bound.
"""

from collections.abc import Mapping
import dataclasses
import math
import re

from kaiju_jax.aot.hlo import text as text_lib

_KNOWN = re.compile(r'"known_trip_count":\{"n":"(\d+)"')
# Instructions that name a computation, which another instruction runs.
_SILENT = ('-done', '-update')
_SAME = ('copy', 'bitcast', 'convert', 'reshape', 'copy-done')


@dataclasses.dataclass(frozen=True)
class Executions:
  """The numbers of executions of a program's computations."""

  # {computation: how often it runs}, without those that never run.
  times: Mapping[str, int]
  # {computation: the (computation, instruction) that runs it}.
  callers: Mapping[str, tuple[str, str]]
  # Loops whose trip count could not be read, such as those whose end depends on
  # the data. Their bodies count once.
  unread: tuple[str, ...]
  # The computations in such loops, whose `times` is a lower bound.
  unsure: frozenset[str]


def executions(module: text_lib.Module) -> Executions:
  """Returns how often each computation runs in one call of the program."""
  times, callers, unread, unsure = {}, {}, {}, set()

  def visit(values: '_Values', count: int, is_sure: bool):
    computation = values.computation
    times[computation.name] = times.get(computation.name, 0) + count
    if not is_sure:
      unsure.add(computation.name)
    for instruction in computation.instructions.values():
      for callee, repeats in _callees(values, instruction):
        if repeats is None:
          unread[instruction.name] = None
        name = callee.computation.name
        callers[name] = computation.name, instruction.name
        visit(
          callee,
          count * (1 if repeats is None else repeats),
          is_sure and repeats is not None,
        )

  visit(_Values(module, module.entry, lambda number, index: None), 1, True)
  return Executions(times, callers, tuple(unread), frozenset(unsure))


def _callees(values, instruction):
  """Yields (computation, times) that an instruction runs; None if unread."""
  opcode = instruction.opcode
  if opcode == 'while':
    body, condition = _loop(values, instruction)
    trips = _trips(values, instruction, body, condition)
    yield body, trips
    yield condition, None if trips is None else trips + 1
  elif not opcode.endswith(_SILENT):
    for name in (
      'calls',
      'branch_computations',
      'true_computation',
      'false_computation',
      'called_computations',
    ):
      for callee in instruction.computations(name):
        yield values.enter(callee, instruction), 1
    if opcode == 'call':
      for callee in instruction.computations('to_apply'):
        yield values.enter(callee, instruction), 1


def _loop(values, loop) -> tuple['_Values', '_Values']:
  """Returns a loop's body and condition, with the constants it carries."""
  (body,) = loop.computations('body')
  (condition,) = loop.computations('condition')

  def element(number, index):
    return None if index is None else ('element', index)

  plain = _Values(values.module, body, element)
  constants = {}
  for index in range(len(loop.type)):
    if plain.value_of(plain.computation.root, index) == ('element', index):
      value = values.value_of(loop.operands[0], index)
      if isinstance(value, int):
        constants[index] = value

  def carried(number, index):
    return constants.get(index, element(number, index))

  return tuple(
    _Values(values.module, name, carried) for name in (body, condition)
  )


def _trips(values, loop, body, condition) -> int | None:
  noted = _KNOWN.search(loop.attributes)
  if noted:
    return int(noted.group(1))
  test = condition.value_of(condition.computation.root)
  if not (isinstance(test, tuple) and test[0] == 'compare'):
    return None
  _, direction, left, stop = test
  if not (isinstance(left, tuple) and left[0] == 'element'):
    return None
  start = values.value_of(loop.operands[0], left[1])
  step = body.value_of(body.computation.root, left[1])
  if not isinstance(start, int) or not isinstance(stop, int):
    return None
  if not (isinstance(step, tuple) and step[:2] == ('plus', left)):
    return None
  return _count(start, stop, step[2], direction)


def _count(start: int, stop: int, step: int, direction: str) -> int | None:
  if direction in ('GT', 'GE'):
    start, stop, step = -start, -stop, -step
    direction = {'GT': 'LT', 'GE': 'LE'}[direction]
  if direction == 'LE':
    stop, direction = stop + 1, 'LT'
  if direction not in ('LT', 'NE') or step <= 0:
    return None
  return max(0, math.ceil((stop - start) / step))


class _Values:
  """The values of a computation's scalars, as far as its text shows them.

  A value is an int; ('element', i) of the tuple that a loop carries; ('plus',
  x, constant); ('compare', direction, x, y); or None if it is unknown.

  Attributes:
    module: the program.
    computation: the computation that holds the scalars.
  """

  def __init__(self, module, name, arguments):
    self.module = module
    self.computation = module.computations[name]
    self._arguments = arguments  # (parameter, its element or None) -> value

  def enter(self, name: str, caller) -> '_Values':
    """Returns the values of a computation that an instruction calls."""

    def argument(number, index):
      if number >= len(caller.operands):
        return None
      return self.value_of(caller.operands[number], index)

    return _Values(self.module, name, argument)

  def value_of(self, name: str, index: int | None = None):
    """Returns the value of an instruction, or of one element of its tuple."""
    x = self.computation.instructions[name]
    if x.opcode == 'tuple' and index is not None:
      return self.value_of(x.operands[index])
    if x.opcode == 'parameter':
      return self._arguments(int(x.literal), index)
    if x.opcode == 'get-tuple-element' and index is None:
      return self.value_of(x.operands[0], int(x.attribute('index')))
    if x.opcode in _SAME:
      return self.value_of(x.operands[0], index)
    if x.opcode in ('fusion', 'call'):
      return self._called(x, index)
    if index is not None:
      return None
    if x.opcode == 'constant':
      return int(x.literal) if re.fullmatch(r'-?\d+', x.literal) else None
    if x.opcode in ('add', 'subtract'):
      return _plus(*map(self.value_of, x.operands), x.opcode)
    if x.opcode == 'compare':
      return (
        'compare',
        x.attribute('direction'),
        *map(self.value_of, x.operands),
      )
    return None

  def _called(self, x, index):
    names = x.computations('calls') or x.computations('to_apply')
    if len(names) != 1:
      return None
    callee = self.enter(names[0], x)
    return callee.value_of(callee.computation.root, index)


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
