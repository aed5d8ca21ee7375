"""Every `module.name` of our own exists: commands that no test runs, too."""

import ast

from tests import source_files


def defined(body):
  """Yields the names that statements define, in their branches too."""
  for node in body:
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
      yield node.name
      continue
    if isinstance(node, ast.Import | ast.ImportFrom):
      for alias in node.names:
        yield (alias.asname or alias.name).split('.')[0]
    for child in ast.walk(node):
      if isinstance(child, ast.Name) and isinstance(child.ctx, ast.Store):
        yield child.id
    for field in 'body', 'orelse', 'handlers', 'finalbody':
      yield from defined(getattr(node, field, []))


def dotted(path):
  """Returns a file's module: kernels/x.py is `kaiju_jax.kernels.x`."""
  linked = 'kernels', source_files.DATA
  parts = path.removesuffix('.py').removesuffix('/__init__').split('/')
  return '.'.join(['kaiju_jax'] * (parts[0] in linked) + parts)


def names_of_modules():
  """Returns the names of each module; a package has its modules' as well."""
  names = {
    dotted(path): {*defined(tree.body), '__doc__', '__file__'}
    for _, path, tree in source_files.sources()
  }
  for module in list(names):
    package, _, name = module.rpartition('.')
    names.get(package, set()).add(name)
  return names


def imported_from(path, node):
  """Returns the absolute module of a `from … import`."""
  if not node.level:
    return node.module
  parts = dotted(path).split('.')
  here = parts if path.endswith('__init__.py') else parts[:-1]
  here = here[: len(here) - node.level + 1]
  return '.'.join([*here, *filter(None, [node.module])])


def missing(path, tree, names):
  """Yields what a file names of our modules and they do not define."""
  alias_of, hidden = {}, set()
  for node in ast.walk(tree):
    if isinstance(node, ast.ImportFrom):
      base = imported_from(path, node)
      for alias in node.names:
        whole = f'{base}.{alias.name}'
        if whole in names:
          alias_of[alias.asname or alias.name] = whole
        elif base in names and alias.name not in names[base]:
          yield f'{path}:{node.lineno}: {whole}'
    elif isinstance(node, ast.arg):
      hidden.add(node.arg)
    elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
      hidden.add(node.id)
  for node in ast.walk(tree):
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
      module = None if node.value.id in hidden else alias_of.get(node.value.id)
      if module and node.attr not in names[module]:
        yield f'{path}:{node.lineno}: {module}.{node.attr}'


def test_what_is_named_of_a_module_is_defined_there():
  names = names_of_modules()
  found = [
    line
    for _, path, tree in source_files.sources()
    for line in missing(path, tree, names)
  ]
  assert not found, found


def test_no_class_has_a_name_twice():
  """The later one would hide the earlier one, without a word."""
  twice = []
  for _, path, tree in source_files.sources():
    for one in ast.walk(tree):
      if not isinstance(one, ast.ClassDef):
        continue
      names = [
        node.target.id for node in one.body if isinstance(node, ast.AnnAssign)
      ]
      names += [
        node.name
        for node in one.body
        if isinstance(node, ast.FunctionDef) and not node.decorator_list
      ]
      twice += [
        f'{path}: {one.name}.{n}' for n in {*names} if names.count(n) > 1
      ]
  assert not twice, twice
