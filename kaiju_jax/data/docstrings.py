"""Makes prose without a download: docstrings, clean and noisy.

Each module of the standard library with at least `LEAST` characters of
docstrings is a document. Its name's hash decides whether it is clean or noisy.
In a noisy document half of the words, drawn at random, have random letters, so
that they cannot be predicted beyond their lengths.

The experiment on annealing (`experiments/configs/annealing.py`) mixes the two.
"""

import ast
from collections.abc import Iterator

import numpy as np

from kaiju_jax.data import documents

# The fewest characters of docstrings that make a module a document.
LEAST = 400
_CLEAN = 0.4
_NOISE = 0.5


def read() -> tuple[list[str], list[str]]:
  """Returns the clean and the noisy documents, each in the order of names.

  Raises:
    ValueError: the running Python carries no sources.
  """
  clean, noisy = [], []
  for number, (name, text) in enumerate(_modules()):
    if documents.is_held_out(name, _CLEAN):
      clean.append(text)
    else:
      noisy.append(with_noise(text, np.random.default_rng(number)))
  return clean, noisy


def with_noise(text: str, rng: np.random.Generator) -> str:
  """Returns the text; each word becomes random letters with probability ½."""

  points = np.frombuffer(text.encode('utf-32-le'), np.uint32).copy()
  is_letter = ((points | 32) >= ord('a')) & ((points | 32) <= ord('z'))
  begins = is_letter & ~np.concatenate([[False], is_letter[:-1]])
  is_noise = rng.random(1 + int(begins.sum())) < _NOISE
  drawn = is_letter & is_noise[np.cumsum(begins)]
  points[drawn] = rng.integers(ord('a'), ord('z') + 1, drawn.sum())
  return points.tobytes().decode('utf-32-le')


def _modules() -> Iterator[tuple[str, str]]:
  for document in documents.read(''):
    if not document.name.endswith('.py'):
      continue
    try:
      tree = ast.parse(document.segments[0])
    except (SyntaxError, ValueError):  # A source for another Python version.
      continue
    text = '\n\n'.join(_docstrings(tree))
    if len(text) >= LEAST:
      yield document.name, text


def _docstrings(tree: ast.Module) -> Iterator[str]:
  kinds = ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef
  for node in ast.walk(tree):
    if isinstance(node, kinds) and (text := ast.get_docstring(node)):
      yield text
