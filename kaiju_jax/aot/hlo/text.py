"""Parses HLO text into computations and instructions; imports no jax.

    %all-gather-start = (s8[2,8]{1,0}, s8[4,8]{1,0}) all-gather-start(%x), …
     name                type                        opcode           operands

`compiled.as_text()` is the only description of a compiled program that every
backend gives. The parser keeps only what this room's other modules need.
"""

from collections.abc import Iterator
import dataclasses
import functools
import math
import re
from typing import Any

_HEADER = re.compile(r'^(ENTRY )?%?([\w.\-]+) \(.*\) -> .*\{$')
_NAME = re.compile(r'^\s+(ROOT )?%?([\w.\-]+) = ')
_ARRAY = re.compile(r'([a-z]\w*)\[([^\]]*)\]')
_REFERENCE = re.compile(r'%([\w.\-]+)')
_BITS = re.compile(r'\d+')


@dataclasses.dataclass(frozen=True)
class Array:
  """An array's type, such as bf16[4,8], without the layout."""

  dtype: str
  shape: tuple[int, ...]

  @property
  def size(self) -> int:
    return math.prod(self.shape)

  @property
  def bytes(self) -> int:
    bits = _BITS.search(self.dtype)
    if bits:
      return -(-self.size * int(bits.group()) // 8)
    return self.size if self.dtype == 'pred' else 0

  def __str__(self) -> str:
    return f'{self.dtype}[{",".join(map(str, self.shape))}]'


# An array, or a tuple of types.
Type = Array | tuple[Any, ...]


@dataclasses.dataclass(frozen=True)
class Instruction:
  """One line of a computation."""

  name: str  # Without the percent sign.
  type: Type  # Type of its result.
  opcode: str  # Such as 'all-gather-start'.
  operands: tuple[str, ...]  # Names of the instructions that it reads.
  literal: str  # The text between the parentheses.
  attributes: str  # The text after them.

  @property
  def arrays(self) -> tuple[Array, ...]:
    """Returns the result's arrays; those of a tuple in their order."""
    return flat(self.type)

  def attribute(self, name: str) -> str | None:
    """Returns an attribute's text up to the comma that ends it, or None."""
    found = re.search(rf'(?:^|[\s,]){name}=', self.attributes)
    if found is None:
      return None
    return _take_until(self.attributes, found.end(), ',')

  def computations(self, name: str) -> tuple[str, ...]:
    """Returns the computations that an attribute names."""
    return tuple(_REFERENCE.findall(self.attribute(name) or ''))

  @property
  def op_name(self) -> str:
    """Returns the path of the JAX operation that made it; '' if unknown."""
    found = re.search(r'op_name="([^"]*)"', self.attributes)
    return found.group(1) if found else ''


@dataclasses.dataclass(frozen=True)
class Computation:
  """A function of the program: its instructions by name, and its root."""

  name: str
  instructions: dict[str, Instruction]
  root: str

  @functools.cached_property
  def parameters(self) -> dict[int, Instruction]:
    return {
      int(x.literal): x
      for x in self.instructions.values()
      if x.opcode == 'parameter'
    }


@dataclasses.dataclass(frozen=True)
class Module:
  """A program: its computations by name, and its entry."""

  computations: dict[str, Computation]
  entry: str


def parse(text: str) -> Module:
  """Returns the program that `compiled.as_text()` describes.

  Raises:
    ValueError: the text has no entry computation.
  """
  computations, entry = {}, None
  name = instructions = root = None
  for line in text.splitlines():
    if name is None:
      header = _HEADER.match(line)
      if header:
        name, instructions, root = header.group(2), {}, None
        entry = name if header.group(1) else entry
    elif line.startswith('}'):
      computations[name] = Computation(name, instructions, root)
      name = None
    else:
      instruction, is_root = _instruction(line)
      if instruction is not None:
        instructions[instruction.name] = instruction
        root = instruction.name if is_root else root
  if entry is None:
    raise ValueError('no ENTRY computation: this is not the text of an HLO.')
  return Module(computations, entry)


def flat(type_: Type) -> tuple[Array, ...]:
  """Returns a type's arrays in their order."""
  if isinstance(type_, Array):
    return (type_,)
  return tuple(array for part in type_ for array in flat(part))


def _instruction(line: str) -> tuple[Instruction | None, bool]:
  match = _NAME.match(line)
  if match is None:
    return None, False
  end = _type_end(line, match.end())
  type_ = _type(line[match.end() : end])
  open_ = line.index('(', end)
  close = _close(line, open_)
  literal = line[open_ + 1 : close]
  instruction = Instruction(
    name=match.group(2),
    type=type_,
    opcode=line[end:open_].strip(),
    operands=tuple(_REFERENCE.findall(literal)),
    literal=literal,
    attributes=line[close + 1 :].lstrip(', '),
  )
  return instruction, match.group(1) is not None


def _type_end(line: str, start: int) -> int:
  if line[start] == '(':
    return _close(line, start) + 1
  return line.index(' ', start)


def _type(text: str) -> Type:
  text = text.strip()
  if text.startswith('('):
    return tuple(_type(part) for part in _split(text[1 : _close(text, 0)]))
  array = _ARRAY.match(text)
  if array is None:
    raise ValueError(f'{text!r} is not the type of an array.')
  sizes = re.findall(r'\d+', array.group(2))
  return Array(array.group(1), tuple(map(int, sizes)))


def _split(text: str) -> Iterator[str]:
  """Yields the parts between the outermost commas."""
  text = re.sub(r'/\*.*?\*/', '', text)
  start = 0
  while start < len(text):
    part = _take_until(text, start, ',')
    if part.strip():
      yield part
    start += len(part) + 1


def _take_until(text: str, start: int, stop: str) -> str:
  """Returns the text up to the first `stop` outside brackets and quotes."""
  depth, is_quoted = 0, False
  for place in range(start, len(text)):
    letter = text[place]
    if letter == '"' and text[place - 1] != '\\':
      is_quoted = not is_quoted
    elif not is_quoted and letter in '([{':
      depth += 1
    elif not is_quoted and letter in ')]}':
      depth -= 1
    elif not is_quoted and letter == stop and depth == 0:
      return text[start:place]
  return text[start:]


def _close(text: str, open_: int) -> int:
  """Returns the place where the parenthesis that opens at `open_` closes."""
  depth, is_quoted = 0, False
  for place in range(open_, len(text)):
    letter = text[place]
    if letter == '"' and text[place - 1] != '\\':
      is_quoted = not is_quoted
    elif not is_quoted and letter == '(':
      depth += 1
    elif not is_quoted and letter == ')':
      depth -= 1
      if depth == 0:
        return place
  raise ValueError(f'unbalanced parentheses in {text!r}.')
