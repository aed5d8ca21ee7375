"""Imports commands whose flags have the same names into one process."""

import importlib

from absl import flags


def imported(name: str):
  """Returns a command's module, and takes its flags out of absl's table.

  Its functions can be called; those that read its flags cannot. Other commands
  keep the flags that they have in the table.
  """
  all_flags = flags.FLAGS
  table = all_flags._flags()
  others = {flag: table.pop(flag) for flag in list(table) if _is_commands(flag)}
  module = importlib.import_module(name)
  for flag in list(all_flags.flags_by_module_dict()[name]):
    if flag.name in table:
      delattr(all_flags, flag.name)
  table.update(others)
  return module


def _is_commands(flag: str) -> bool:
  """Returns whether a command defined a flag."""
  module = flags.FLAGS.find_module_defining_flag(flag, '')
  return module.startswith('experiments.')
