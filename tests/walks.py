"""The walks of `docs/rooms.md`, and the files that a run really enters."""

import functools
import os
import pathlib
import re
import sys
import threading

ROOT = pathlib.Path(__file__).parents[1]


def listed(text):
  """Returns the files that tables of the page list, such as 'data/text.py'.

  A name without a folder lies in the folder of the name before it.
  """
  found = set()
  for row in re.findall(r'^\| (`.*?) \|', text, re.M):
    folder = ''
    for name in re.findall(r'`([\w/]+\.py)`', row):
      folder = name.rpartition('/')[0] or folder
      found.add(f'{folder}/{name.rpartition("/")[2]}'.lstrip('/'))
  return found


def section(heading):
  """Returns the page's text below a heading of the second level."""
  _, text = (ROOT / 'docs/rooms.md').read_text().split(f'## {heading}\n')
  return text.split('\n## ')[0]


@functools.cache
def _name(path):
  """Returns a file's name in the package or beside it; None for others."""
  if path.startswith('<'):  # Made by `exec`, or frozen.
    return None
  path = os.path.realpath(path)
  if path.startswith((f'{ROOT}/tests/', f'{ROOT}/.venv')):
    return None
  for folder in f'{ROOT}/kaiju_jax/', f'{ROOT}/':
    if path.startswith(folder):
      return path.removeprefix(folder)
  return None


class Trace:
  """The files of the package in which functions run within the block.

  It sees threads that begin while it is installed, and what is imported before
  the block is no call.
  """

  def __init__(self):
    self.files = set()
    self._is_on = False

  def install(self):
    """Watches this thread and those to come; returns what undoes that."""
    former = threading.gettrace(), sys.gettrace()
    threading.settrace(self._note)
    sys.settrace(self._note)

    def restore():
      threading.settrace(former[0])
      sys.settrace(former[1])

    return restore

  def __enter__(self):
    self._is_on = True
    return self

  def __exit__(self, *_):
    self._is_on = False

  def _note(self, frame, event, _):
    code = frame.f_code
    is_call = self._is_on and event == 'call' and code.co_name != '<module>'
    if is_call and (name := _name(code.co_filename)):
      self.files.add(name)
