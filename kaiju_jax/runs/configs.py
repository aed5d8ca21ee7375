"""Reads --config: names of configs, and the fields that overrides name."""

from collections.abc import Sequence
import dataclasses
import difflib
import os
import pathlib
import sys

from absl import flags
from ml_collections import config_flags

from kaiju_jax.runs import own_parts
from kaiju_jax.training import experiment as experiment_lib


def check_fields(
  argv: Sequence[str], experiment: experiment_lib.Experiment | None = None
) -> None:
  """Refuses a --config.FIELD that an experiment does not have.

  Args:
    argv: the words of the command.
    experiment: the one that the config file returns; before it is read, the
      fields of its own settings are not known, and are not checked.

  Raises:
    ValueError: names the unknown field and the existing ones.
  """
  for argument in argv:
    name = argument.lstrip('-').partition('=')[0]
    if not argument.startswith('-') or not name.startswith('config.'):
      continue
    if experiment is None and name.startswith('config.parts.settings.'):
      continue
    holder = experiment or experiment_lib.Experiment()
    for part in name.split('.')[1:]:
      known = (
        [field.name for field in dataclasses.fields(holder)]
        if dataclasses.is_dataclass(holder)
        else []
      )
      if part not in known:
        raise ValueError(f'{argument}: {_unknown(part, holder, known)}')
      holder = getattr(holder, part)


def _unknown(part: str, holder: object, known: Sequence[str]) -> str:
  line = f'{type(holder).__name__} has no field {part!r}.'
  if close := difflib.get_close_matches(part, known, 1):
    line += f' Did you mean {close[0]!r}?'
  if known:
    line += f' It has {", ".join(known)}.'
  return line


def named_configs(argv: Sequence[str]) -> list[str]:
  """Returns a command's words, the name after --config replaced by its path.

  Raises:
    ValueError: as `config_path`.
  """
  words = list(argv)
  for i, word in enumerate(words):
    flag, equals, value = word.partition('=')
    if flag not in ('-config', '--config'):
      continue
    if equals:
      words[i] = f'{flag}={config_path(value)}'
    elif i + 1 < len(words):
      words[i + 1] = config_path(words[i + 1])
  return words


def config_path(name: str) -> str:
  """Returns a config's path, followed by the colon and the arm, if any.

  Args:
    name: 'tiny' or 'tiny:bf16', a file of `experiments/configs/`; or a path,
      which has a slash or ends in '.py'.

  Raises:
    ValueError: no config has that name.
  """
  file, colon, arm = name.partition(':')
  if '/' in file or os.sep in file or file.endswith('.py') or not file:
    return name
  configs = pathlib.Path(__file__).parents[1] / 'experiments' / 'configs'
  known = sorted(path.stem for path in configs.glob('[a-z]*.py'))
  if file not in known:
    near = difflib.get_close_matches(file, known, 1)
    near = f' Did you mean {near[0]!r}?' if near else ''
    raise ValueError(
      f'--config={name}: neither a path nor a config.{near} There are'
      f' {", ".join(known)}.'
    )
  return f'{configs / file}.py{colon}{arm}'


def define(
  name: str,
  default: str | None = None,
  text: str = '',
  values: flags.FlagValues = flags.FLAGS,
  argv: Sequence[str] | None = None,
) -> flags.FlagHolder:
  """Defines the flag of a config file, with --NAME.FIELD=VALUE.

  Reading it brings the parts that the file has (`own_parts.py`).

  Args:
    name: of the flag.
    default: a path, None for none.
    text: the flag's help.
    values: the table of flags.
    argv: the command line, by default the process's.
  """
  flag = config_flags.DEFINE_config_file(
    name, default, text, flag_values=values, sys_argv=argv
  )
  parser = values[name].parser
  read = parser.parse

  def parse(path: str):
    found = read(path)
    if not isinstance(found, experiment_lib.Experiment):
      return found  # The error that its reader raises.
    found = own_parts.of_config(found, path.partition(':')[0])
    check_fields(sys.argv if argv is None else argv, found)
    return found

  parser.parse = parse
  return flag


def find_file() -> str:
  """Returns the path, with its arm, that --config was read from."""
  return flags.FLAGS['config'].config_filename
