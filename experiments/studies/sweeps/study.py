"""The frame of a command that trains a grid of runs and judges them together.

A study is a module, such as `rates`:

    measure(subject, settings, root, at_once) → found
    parts(found)    tables and sentences, for the terminal
    plain(found)    what JSON can hold
    draw(found)     a figure

The subject is what varies, and `settings` says how.
"""

import dataclasses
import pathlib
import types
from typing import Any

from kaiju_jax.reporting import figures
from kaiju_jax.reporting import report
from kaiju_jax.runs import flags


@dataclasses.dataclass(frozen=True, kw_only=True)
class Frame:
  """The settings of every study."""

  # Seeds of the runs.
  seeds: flags.Seeds = (0,)
  # Where everything goes.
  out: str | None = None
  # Processes at once, the cores split among them; by default one per core, and
  # on an accelerator 1, which trains in this process.
  jobs: flags.Positive | None = None

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

    What is complete in the folder is not run again.

    Args:
      study: the module.
      subject: as `study.measure` takes it.
      out: the folder where --out names none.
    """
    root = pathlib.Path(self.out or out)
    found = study.measure(subject, self, root, self.jobs)
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
