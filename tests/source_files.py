"""The source files of the house, tests aside, parsed."""

import ast
import functools
import pathlib

ROOT = pathlib.Path(__file__).parents[1]
DATA = 'tpu_gpu_configs'
LINKS = [('kaiju_jax', name) for name in ('experiments', 'kernels', DATA)]


@functools.cache
def sources():
  """Returns (room, path, tree) of every file, tests aside."""
  found = []
  for folder in 'kaiju_jax', 'kernels', 'tpu_gpu_configs', 'experiments':
    for path in sorted((ROOT / folder).rglob('*.py')):
      parts = path.relative_to(ROOT).parts
      if parts[:2] in LINKS:
        continue  # Newer Pythons follow symbolic links.
      room = parts[1] if folder == 'kaiju_jax' else folder
      tree = ast.parse(path.read_text())
      name = str(path.relative_to(ROOT))
      found.append((room.removesuffix('.py'), name, tree))
  return found
