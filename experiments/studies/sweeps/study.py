"""The frame of a command that trains a grid of runs and judges them together.

A study is two modules, such as `rates` and `rates_report`:

    rates.measure(subject, asked, root, at_once) → found
    rates_report.parts(found)    tables and sentences, for the terminal
    rates_report.plain(found)    what JSON can hold
    rates_report.draw(found)     a figure

The subject is what varies, and `settings` says how. Importing this module
defines no flags; `define` does.
"""

import pathlib
import types
from typing import Any
from typing import NamedTuple

from absl import flags

from kaiju_jax.reporting import figures
from kaiju_jax.reporting import report
from kaiju_jax.runs import command
from kaiju_jax.runs import configs

# absl then counts flags that a function here defines as its caller's flags.
flags.disclaim_key_flags()


class Frame(NamedTuple):
  """The flags that all studies share."""

  seeds_flag: flags.FlagHolder
  out: flags.FlagHolder
  jobs: flags.FlagHolder

  def check(self) -> None:
    """Refuses a study that could not be judged, before anything runs.

    Raises:
      ValueError: no figure can be drawn, or a flag makes no sense.
    """
    figures.require_figures()
    command.seeds(self.seeds_flag)
    if self.out.value is not None:
      command.folder(self.out)

  @property
  def seeds(self) -> tuple[int, ...]:
    """The seeds of --seeds."""
    return tuple(command.seeds(self.seeds_flag))

  def run(
    self,
    study: types.ModuleType,
    words: types.ModuleType,
    subject: Any,
    settings: Any,
    out: pathlib.Path | None = None,
  ) -> None:
    """Measures, prints, and writes NAME.json and NAME.png into the folder.

    What is complete in the folder is not run again.

    Args:
      study: the module that measures.
      words: the module that reports.
      subject: as `study.measure` takes it.
      settings: as `study.measure` takes it.
      out: the folder where --out names none.
    """
    root = pathlib.Path(self.out.value or out)
    found = study.measure(subject, settings, root, self.jobs.value)
    name = study.__name__.rpartition('.')[2]
    report.Report().add(*words.parts(found)).show(
      publish(root, name, words, found)
    )


def publish(
  root: pathlib.Path, name: str, words: types.ModuleType, found: Any
) -> tuple[pathlib.Path, pathlib.Path]:
  """Writes NAME.json and NAME.png; returns their paths."""
  from kaiju_jax.storage import files

  page = root / f'{name}.json', root / f'{name}.png'
  files.write_json(page[0], report.plain(words.plain(found)))
  figures.save(words.draw(found), page[1])
  return page


def define(
  out: str | None,
  seeds: str,
  *,
  out_text: str = 'Where everything goes.',
  seeds_text: str = 'Seeds of the runs.',
) -> Frame:
  """Defines --seeds, --out and --jobs.

  Args:
    out: default of --out; None where the command has another one.
    seeds: default of --seeds.
    out_text: help of --out.
    seeds_text: help of --seeds.
  """
  return Frame(
    command.define_seeds(seeds, seeds_text),
    flags.DEFINE_string('out', out, out_text),
    flags.DEFINE_integer(
      'jobs',
      None,
      'Processes at once, the cores split among them; by default one per core,'
      ' and on an accelerator 1, which trains in this process.',
      lower_bound=1,
    ),
  )


def define_config(path: str) -> flags.FlagHolder:
  """Defines --config, by default a file of `experiments/configs/`.

  The runs have the experiment's fields but for those that the study varies.
  """
  from ml_collections import config_flags

  return config_flags.DEFINE_config_file(
    'config',
    configs.config_path(path),
    'What is trained, at any width: NAME:ARM, or PATH:ARM.',
  )
