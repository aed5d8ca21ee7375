"""Names tell shapes: einsum letters and operand suffixes must agree."""

import ast
import pathlib
import re

import pytest

ROOT = pathlib.Path(__file__).parents[1]
FILES = sorted((ROOT / 'kaiju_jax').rglob('*.py')) + sorted(
  (ROOT / 'kernels').rglob('*.py')
)


def name_of(node) -> str | None:
  if isinstance(node, ast.Name):
    return node.id
  if isinstance(node, ast.Attribute):
    return node.attr
  return None


def einsums(path):
  """Yields (line, letters of each operand, operand nodes)."""
  for node in ast.walk(ast.parse(path.read_text())):
    if not isinstance(node, ast.Call) or name_of(node.func) != 'einsum':
      continue
    spec, *operands = node.args or [None]
    if isinstance(spec, ast.Constant) and isinstance(spec.value, str):
      yield node.lineno, spec.value.split('->')[0].split(','), operands


def disagreements(path):
  found = []
  for line, letters, operands in einsums(path):
    for wanted, operand in zip(letters, operands):
      suffix = re.search(r'_([A-Z]+)$', name_of(operand) or '')
      if suffix and suffix[1] != wanted:
        found.append(f'{path.name}:{line}: {name_of(operand)} as {wanted}')
  return found


@pytest.mark.parametrize('path', FILES, ids=lambda p: p.stem)
def test_einsums_agree_with_names(path):
  assert not disagreements(path)


def test_the_check_finds_einsums_and_a_planted_slip(tmp_path):
  assert sum(len(list(einsums(path))) for path in FILES) >= 15
  slip = tmp_path / 'slip.py'
  slip.write_text("y_BLF = jnp.einsum('BLD,FD->BLF', x_BLD, w_in_DF)")
  assert disagreements(slip) == ['slip.py:1: w_in_DF as FD']
