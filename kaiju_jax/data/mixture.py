"""Mixes the rows of several sources by weights that count tokens.

Every row comes from one source. (Weights that chose documents would not count
tokens: a source of long documents would get more of them.) A source's share of
the rows is its weight over the mean fill of its rows; the shares are scaled to
the sum 1. The fill is the fraction of a row's places that hold tokens: 1 for
linear text, less for trees, whose rows are padded because trees are never cut.

In each block of Q rows the sources get their shares (`data/apportionment.py`),
in an order drawn from (seed, block). Each source gives its rows in its own
order:

    block 0, weights .5 .25 .25     a c a b  b a a c
    the source's own row number     0 0 1 0  1 2 3 1

So rows[i] is a pure function of the config, the seed and i. Any row is found
without drawing the rows before it; only the counts of earlier blocks are made,
once. Each source goes through epochs of its own.

From the sources: data mixes, and another mix near the end of training
(annealing). How rows are drawn is our guess.
"""

from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any
from typing import NamedTuple

import numpy as np

from kaiju_jax.data import apportionment
from kaiju_jax.data import loader
from kaiju_jax.data import packing

# Separates the order's random numbers from those of the sources' own orders,
# which are drawn from (seed, epoch).
_ORDER = 1


class Part(NamedTuple):
  """One source of a mixture."""

  name: str  # Its name.
  # Its rows, all of one length. All parts have extras of the same names and
  # shapes, or none has extras.
  rows: loader.RowSource
  # Its share of the tokens, relative to the other parts' weights.
  weight: float
  anneal: float  # The same in the annealing stage.
  fill: float = 1.0  # The mean fraction of a row's places that hold tokens.


class _Block(NamedTuple):
  rows: range  # The mixture's rows.
  parts: Sequence[int]  # The part of each row.
  numbers: Sequence[int]  # The number of each row in its part.


class Mixture(loader.RowSource):
  """A row source that mixes parts.

  Each row has one extra more than its part's rows: `component_B`, the index of
  the part. (`source` still numbers the documents of the part.)
  """

  def __init__(
    self,
    parts: Sequence[Part],
    total: int,
    anneal_at: float = 1.0,
    anneal_over: float = 0.0,
    block: int = 1024,
    seed: int = 0,
  ):
    """Makes a mixture; a block's order is drawn when a row of it is read.

    Args:
      parts: the sources, at least one.
      total: rows of the run. Later rows exist, with the last weights.
      anneal_at, anneal_over: see `apportionment.stages`.
      block: Q, rows of a block.
      seed: of the order.
    """
    self.parts: tuple[Part, ...] = tuple(parts)
    self._total = total
    self._seed = seed
    self._stages = apportionment.stages(
      [one.weight / one.fill for one in parts],
      [one.anneal / one.fill for one in parts],
      total,
      anneal_at,
      anneal_over,
    )
    self._blocks = apportionment.Blocks(self._stages, block)
    self._components = list(np.arange(len(self.parts), dtype=np.int32))
    self._latest = _Block(range(0), (), ())

  def __len__(self) -> int:
    """Returns the rows of the run; each part has epochs of its own."""
    return self._total

  def __getitem__(self, index: int) -> packing.Row:
    """Returns row `index`, which may be any number from 0 on."""
    if index < 0:
      raise IndexError(f'row {index}: rows are counted from 0 on.')
    block = self._block(index)
    place = index - block.rows.start
    part = block.parts[place]
    row = self.parts[part].rows[block.numbers[place]]
    component = {packing.COMPONENT: self._components[part]}
    return row._replace(extras={**(row.extras or {}), **component})

  def locate(self, index: int) -> list[packing.Origin]:
    """Returns what stands in row `index`, in its order."""
    block = self._block(index)
    place = index - block.rows.start
    return self.parts[block.parts[place]].rows.locate(block.numbers[place])

  @property
  def shares(self) -> np.ndarray:
    """float64[S], the parts' shares of the whole run's tokens."""
    fills = [one.fill for one in self.parts]
    tokens = self._stages.sum_weights(self._total) * fills
    return tokens / tokens.sum()

  def counts(self, index: int) -> np.ndarray:
    """Returns int64[S], how many rows of each part come before `index`."""
    block = self._block(index)
    inside = block.parts[: index - block.rows.start]
    before = self._blocks.counts(self._blocks.number(index))
    return before + np.bincount(
      np.asarray(inside, int), minlength=len(self.parts)
    )

  def account(self, index: int) -> dict[str, Any]:
    """Returns the rows of each part before `index`, as JSON can hold it."""
    return {
      part.name: {'rows': int(count)}
      for part, count in zip(self.parts, self.counts(index))
    }

  def check_account(self, index: int, account: Any) -> None:
    """Refuses to resume at row `index` if the rows before it have changed.

    Raises:
      ValueError: names the first source that gave another number of rows.
    """
    for name, own in self.account(index).items():
      saved = account.get(name) if isinstance(account, Mapping) else None
      rows = saved.get('rows') if isinstance(saved, Mapping) else None
      if rows != own['rows']:
        then = 'no record' if rows is None else rows
        raise ValueError(
          f'data.sources: {name!r} gave other rows before the checkpoint'
          f' ({then} then, {own["rows"]} now). A run goes on with the weights'
          ' and texts that it began with; restore them, or begin another run in'
          ' a new --workdir.'
        )

  def _block(self, index: int) -> _Block:
    """Returns the block that holds a row; keeps the latest block."""
    block = self._latest
    if index not in block.rows:
      block = self._latest = self._draw(self._blocks.number(index))
    return block

  def _draw(self, number: int) -> _Block:
    before, after = (self._blocks.counts(n) for n in (number, number + 1))
    parts = np.repeat(np.arange(len(self.parts)), after - before)
    rng = np.random.default_rng((self._seed, number, _ORDER))
    rng.shuffle(parts)
    numbers = np.empty(len(parts), np.int64)
    for part, (first, last) in enumerate(zip(before, after)):
      numbers[parts == part] = np.arange(first, last)
    rows = range(
      self._blocks.first_row(number), self._blocks.first_row(number + 1)
    )
    return _Block(rows, parts.tolist(), numbers.tolist())
