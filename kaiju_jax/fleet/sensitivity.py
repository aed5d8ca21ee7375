"""Varies a book's cells one at a time, from low to high."""

import dataclasses
from typing import NamedTuple

from kaiju_jax.fleet import book as book_lib
from kaiju_jax.fleet import economics


class Bar(NamedTuple):
  """What one input does to the cost.

  Attributes:
    name: the input.
    label: its cell's label.
    low, high: its ends.
    at_low, at_high: $ per 1,000 messages there.
  """

  name: str
  label: str
  low: float
  high: float
  at_low: float
  at_high: float

  @property
  def swing(self) -> float:
    return abs(self.at_high - self.at_low)


def tornado(book: book_lib.Book) -> list[Bar]:
  """Returns a bar per cell that has ends, the largest swing first.

  Raises:
    ValueError: the book is incomplete, or an end of a cell is impossible; the
      message names the cell.
  """
  given = book_lib.inputs(book)
  bars = []
  for field in dataclasses.fields(given):
    cell = book[field.name]
    if cell.low is None or cell.high is None:
      continue
    ends = []
    for value in (cell.low, cell.high):
      try:
        other = dataclasses.replace(given, **{field.name: value})
        ends.append(1000 * economics.cost(other).total)
      except ValueError as error:
        raise ValueError(f'{field.name}={value:g}: {error}') from error
    bars.append(Bar(field.name, cell.label, cell.low, cell.high, *ends))
  return sorted(bars, key=lambda bar: -bar.swing)
