"""Imports commands whose flags have the same names into one process."""

import importlib

from absl import flags


def imported(name: str):
  """Returns a command's module, and takes its flags out of absl's table.

  Its functions can be called; those that read its flags cannot.
  """
  module = importlib.import_module(name)
  for flag in list(flags.FLAGS):
    if flags.FLAGS.find_module_defining_flag(flag) == name:
      delattr(flags.FLAGS, flag)
  return module
