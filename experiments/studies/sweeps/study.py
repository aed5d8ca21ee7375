"""The frame of a command that trains a grid of runs and judges them together.

A study is a module, such as `rates`:

    measure(subject, settings, root) → found
    parts(found)    tables and sentences, for the terminal
    plain(found)    what JSON can hold
    draw(found)     a figure

The subject is what varies, and `settings` says how.
"""

import copy
import dataclasses
import itertools
import pathlib
import types
from typing import Annotated
from typing import Any
from typing import Literal

from kaiju_jax.reporting import figures
from kaiju_jax.reporting import report
from kaiju_jax.runs import flags
from kaiju_jax.runs import slurm
from kaiju_jax.training import experiment as experiment_lib


@dataclasses.dataclass(frozen=True, kw_only=True)
class Frame(slurm.Launch):
  """The settings of every study."""

  # Seeds of the runs.
  seeds: flags.Seeds = (0,)
  # Where everything goes.
  out: str | None = None

  def check(self) -> None:
    """Refuses a study that could not be judged, before anything runs.

    Raises:
      ValueError: no figure can be drawn, or --out names no folder.
    """
    figures.require_figures()
    if self.out is not None:
      flags.folder('out', self.out)

  def run(
    self,
    study: types.ModuleType,
    subject: Any,
    out: pathlib.Path | None = None,
  ) -> None:
    """Measures, prints, and writes NAME.json and NAME.png into the folder.

    What is complete in the folder is not run again. A dry run writes nothing.

    Args:
      study: the module.
      subject: as `study.measure` takes it.
      out: the folder where --out names none.
    """
    root = pathlib.Path(self.out or out)
    found = study.measure(subject, self, root)
    if self.dry_run:
      return
    report.Report().add(*study.parts(found)).show(publish(root, study, found))


def publish(
  root: pathlib.Path, study: types.ModuleType, found: Any
) -> tuple[pathlib.Path, pathlib.Path]:
  """Writes STUDY.json and STUDY.png; returns their paths."""
  from kaiju_jax.storage import files

  name = study.__name__.rpartition('.')[2]
  page = root / f'{name}.json', root / f'{name}.png'
  files.write_json(page[0], report.plain(study.plain(found)))
  figures.save(study.draw(found), page[1])
  return page


_Swept = Annotated[experiment_lib.Experiment | None, flags.Config('sweep')]
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
class RateGrid(Frame):
  """Which rates are tried at which widths."""

  # What is trained, at any width: NAME:ARM, or PATH:ARM.
  config: _Swept = None
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

  def __post_init__(self) -> None:
    if self.predict <= max(self.widths):
      raise ValueError(
        f'--predict={self.predict}: must be wider than all of --widths, the'
        f' widest of which is {max(self.widths)}.'
      )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Scaling(Frame):
  """Which runs a law is fitted to, and which it predicts."""

  # What is trained, at any width: NAME:ARM, or PATH:ARM.
  config: _Swept = None
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

  def __post_init__(self) -> None:
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
class CriticalBatch(Frame):
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

  def __post_init__(self) -> None:
    if len(self.multiples) < 2 or min(self.multiples) != 1:
      raise ValueError(
        f'--multiples={",".join(map(str, self.multiples))}: must have 1, which'
        ' the others are compared with, and at least one more.'
      )


def with_width(
  experiment: experiment_lib.Experiment, width: int
) -> experiment_lib.Experiment:
  """Returns a copy whose d_model is `width`; heads and d_ff keep their ratio.

  The size of a head stays as it is.

  Raises:
    ValueError: heads or d_ff would not be whole.
  """
  made = copy.deepcopy(experiment)
  model, was = made.model, experiment.model.d_model
  for name in ('num_heads', 'd_ff'):
    value = getattr(model, name) * width
    if width < 1 or value % was:
      raise ValueError(
        f'width {width}: model.{name}={getattr(model, name)} at'
        f' model.d_model={was} would become {value / was:g}, which must be a'
        ' positive whole number.'
      )
    setattr(model, name, value // was)
  model.d_model = width
  return made
