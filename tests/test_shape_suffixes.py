"""Names tell shapes: einsum letters and operand suffixes agree."""

import ast
import pathlib
import re

import pytest

ROOT = pathlib.Path(__file__).parents[1]
FILES = [
  path
  for room in ('kaiju_jax', 'kernels', 'experiments')
  for path in sorted((ROOT / room).rglob('*.py'))
]


def name_of(node) -> str | None:
  if isinstance(node, ast.Name):
    return node.id
  if isinstance(node, ast.Attribute):
    return node.attr
  return None


def is_einsum(node) -> bool:
  """Whether a call is an einsum whose specification is written out."""
  return (
    isinstance(node, ast.Call)
    and name_of(node.func) == 'einsum'
    and bool(node.args)
    and isinstance(node.args[0], ast.Constant)
    and isinstance(node.args[0].value, str)
  )


def einsums(path):
  """Yields (line, [(letters, name)] of each operand and of the result)."""
  tree = ast.parse(path.read_text())
  results = {
    node.value: node.targets[0]
    for node in ast.walk(tree)
    if isinstance(node, ast.Assign) and len(node.targets) == 1
  }
  results |= {
    node.value: node.target
    for node in ast.walk(tree)
    if isinstance(node, ast.AugAssign | ast.AnnAssign)
  }
  for node in ast.walk(tree):
    if is_einsum(node):
      inputs, _, output = node.args[0].value.partition('->')
      pairs = list(zip(inputs.split(','), map(name_of, node.args[1:])))
      pairs.append((output, name_of(results.get(node))))
      yield node.lineno, pairs


def disagreements(path):
  found = []
  for line, pairs in einsums(path):
    for wanted, name in pairs:
      suffix = re.search(r'_([A-Z]+)$', name or '')
      if suffix and suffix[1] != wanted:
        found.append(f'{path.name}:{line}: {name} as {wanted}')
  return found


@pytest.mark.parametrize('path', FILES, ids=lambda p: p.stem)
def test_einsums_agree_with_names(path):
  assert not disagreements(path)


def test_the_check_finds_einsums_and_planted_slips(tmp_path):
  assert sum(len(list(einsums(path))) for path in FILES) >= 15
  slip = tmp_path / 'slip.py'
  slip.write_text(
    "y_BLF = jnp.einsum('BLD,FD->BLF', x_BLD, w_in_DF)\n"
    "y_BFL = jnp.einsum('BLD,DF->BLF', x_BLD, self.w_in_DF)\n"
    "y_FD += self.einsum('DF->DF', x_DF)\n"
    "y_BLF = jnp.einsum('BLD,DF->BLF', x_BLD, w_in_DF)\n"
  )
  assert disagreements(slip) == [
    'slip.py:1: w_in_DF as FD',
    'slip.py:2: y_BFL as BLF',
    'slip.py:3: y_FD as DF',
  ]
