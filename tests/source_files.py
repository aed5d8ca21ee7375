"""The source files of the house, tests aside, as texts and parsed."""

import ast
import functools
import pathlib

ROOT = pathlib.Path(__file__).parents[1]
DATA = 'tpu_gpu_configs'
LINKS = [('kaiju_jax', name) for name in ('experiments', 'kernels', DATA)]


def texts():
  """Yields (room, path, text) of every file, tests aside."""
  for folder in 'kaiju_jax', 'kernels', 'tpu_gpu_configs', 'experiments':
    for path in sorted((ROOT / folder).rglob('*.py')):
      parts = path.relative_to(ROOT).parts
      if parts[:2] in LINKS:
        continue  # Newer Pythons follow symbolic links.
      room = parts[1] if folder == 'kaiju_jax' else folder
      name = str(path.relative_to(ROOT))
      yield room.removesuffix('.py'), name, path.read_text()


@functools.cache
def sources():
  """Returns (room, path, tree) of every file, tests aside."""
  return [(room, path, ast.parse(text)) for room, path, text in texts()]
