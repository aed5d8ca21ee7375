"""The settings of the studies of this folder: the flags of their commands."""

import dataclasses
import itertools
from typing import Annotated
from typing import Literal

from kaiju_jax.experiments.studies.sweeps import study
from kaiju_jax.runs import flags

_Fitted = Annotated[
  tuple[int, ...], flags.Numbers(3, 'the law needs three or more')
]


def _read_largest(text: str, flag: str) -> tuple[int, int]:
  width, _, tokens = text.partition(':')
  if not (width.isdecimal() and tokens.isdecimal()):
    raise ValueError(
      f'{flag}={text}: must be WIDTH:TOKENS, such as 128:4194304.'
    )
  return int(width), int(tokens)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Rates(study.Frame):
  """Which rates are tried at which widths."""

  # Widths d_model that are measured.
  widths: Annotated[
    tuple[int, ...], flags.Numbers(2, 'a line needs two or more')
  ] = (48, 64, 96, 128)
  # The width whose rate is predicted, then run.
  predict: flags.Positive = 192
  # Learning rates that every width is trained at.
  rates: Annotated[
    tuple[float, ...], flags.Numbers(3, 'a parabola needs three or more')
  ] = (2e-3, 4e-3, 8e-3, 1.6e-2, 3.2e-2, 6.4e-2)
  # The parabola goes through rates within this factor of the best one.
  factor: Annotated[float, flags.Bounds(1.0)] = 2.0
  # Values of optimizer.transfer.
  transfer: tuple[Literal['none', 'width'], ...] = ('none', 'width')
  # Where everything goes.
  out: str = 'runs/rates'
  # Seeds of the runs.
  seeds: flags.Seeds = (0, 1)

  def __post_init__(self):
    if self.predict <= max(self.widths):
      raise ValueError(
        f'--predict={self.predict}: must be wider than all of --widths, the'
        f' widest of which is {max(self.widths)}.'
      )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Scaling(study.Frame):
  """Which runs a law is fitted to, and which it predicts."""

  # Widths d_model that are fitted.
  widths: _Fitted = (32, 48, 64, 96)
  # Training tokens of each width.
  tokens: _Fitted = (2**18, 2**19, 2**20, 2**21)
  # WIDTH:TOKENS of the run that is held out.
  largest: Annotated[
    tuple[int, int],
    flags.Parsed(_read_largest, lambda pair: f'{pair[0]}:{pair[1]}'),
  ] = (128, 2**22)
  # The learning rate goes with width to this power.
  rate_slope: float = -0.5
  # Where everything goes.
  out: str = 'runs/scaling'

  def __post_init__(self):
    width, tokens = max(self.widths), max(self.tokens)
    if self.largest[0] <= width or self.largest[1] <= tokens:
      raise ValueError(
        f'--largest={self.largest[0]}:{self.largest[1]}: must be wider than'
        f' {width} and longer than {tokens} tokens, the largest that are'
        ' fitted.'
      )

  @property
  def places(self) -> list[tuple[int, int]]:
    """(width, tokens) of what is fitted."""
    return [*itertools.product(self.widths, self.tokens)]


@dataclasses.dataclass(frozen=True, kw_only=True)
class CriticalBatch(study.Frame):
  """Where a run branches off, and into which batches."""

  # Fractions of the run's tokens to branch off at.
  at: Annotated[tuple[float, ...], flags.Numbers(below=1)] = (0.1, 0.3)
  # Times the batch; 1 among them.
  multiples: tuple[int, ...] = (1, 2, 4, 8)
  # Relative loss that a larger batch may cost.
  epsilon: Annotated[float, flags.Bounds(above=0.0, below=1.0)] = 0.003
  # The part of the run's tokens that a branch trains on.
  share: Annotated[float, flags.Bounds(above=0.0, most=1.0)] = 0.4
  # Whether three runs from the beginning follow.
  confirm: bool = True
  # Where everything goes; by default MODEL-critical_batch.
  out: str | None = None
  # Orders of the data, counted from the run's own.
  seeds: flags.Seeds = (0, 1)

  def __post_init__(self):
    if len(self.multiples) < 2 or min(self.multiples) != 1:
      raise ValueError(
        f'--multiples={",".join(map(str, self.multiples))}: must have 1, which'
        ' the others are compared with, and at least one more.'
      )
