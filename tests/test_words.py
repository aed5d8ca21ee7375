"""The rules of words that a machine can hold (BUILD_NOTES, "Words")."""

import ast
import re

from tests import source_files

# Participles that do not end in -ed, and prepositions: neither names a
# function. (A property is a value, and may be an adjective.)
PARTICIPLES = {
  *('begun', 'bound', 'brought', 'built', 'caught', 'chosen', 'cut', 'done'),
  *('drawn', 'fallen', 'found', 'given', 'gone', 'held', 'hidden', 'kept'),
  *('known', 'left', 'lost', 'made', 'meant', 'met', 'said', 'seen'),
  *('sent', 'shown', 'spent', 'spoken', 'taken', 'taught', 'told', 'thrown'),
  *('understood', 'woken', 'won', 'written', 'rewritten'),
}
PREPOSITIONS = {
  *('above', 'after', 'around', 'at', 'before', 'behind', 'below', 'beside'),
  *('between', 'beyond', 'by', 'during', 'for', 'from', 'in', 'inside'),
  *('into', 'of', 'off', 'on', 'out', 'outside', 'over', 'past', 'since'),
  *('through', 'to', 'towards', 'under', 'unless', 'until', 'up', 'upon'),
  *('via', 'with', 'within', 'without'),
}
# Verbs, nouns and HTTP's own words that look like participles.
PLAIN = {'cut', 'embed', 'feed', 'hidden', 'need', 'seed', 'speed'}
PLAIN |= {'unauthorized'}


def is_value(node):
  """Returns whether a function is read as an attribute."""
  names = {ast.unparse(one).rpartition('.')[2] for one in node.decorator_list}
  return bool(names & {'property', 'cached_property', 'setter'})


def is_nameless(name):
  """Returns whether a public name is a bare participle or preposition."""
  if name in PLAIN or '_' in name:
    return False
  return name in PARTICIPLES | PREPOSITIONS or name.endswith('ed')


def functions(tree):
  """Yields the functions and methods of a file, those inside others aside."""
  for node in ast.iter_child_nodes(tree):
    if isinstance(node, ast.ClassDef):
      yield from functions(node)
    elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
      yield node


def documented(tree):
  """Yields what may have a docstring."""
  kinds = ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef
  return (node for node in ast.walk(tree) if isinstance(node, kinds))


def test_functions_are_named_by_verbs():
  found = [
    f'{path}:{node.lineno}: {node.name}'
    for _, path, tree in source_files.sources()
    for node in functions(tree)
    if is_nameless(node.name) and not is_value(node)
  ]
  assert not found, found


def test_no_sentence_opens_with_of():
  found = [
    f'{path}: {match[0]!r}'
    for _, path, tree in source_files.sources()
    for node in documented(tree)
    for match in re.finditer(
      r'(?:^|[.:!?]\s+)Of\s\w+', ast.get_docstring(node) or ''
    )
  ]
  assert not found, found


def test_rooms_say_what_they_do():
  """A noun clause ("What …", "How …") says it of something else."""
  clauses = re.compile(r'(What|How|Who|Whose|Where|When|Which|Why)\b')
  found = [
    f'{path}: {(ast.get_docstring(tree) or "").splitlines()[0]}'
    for room, path, tree in source_files.sources()
    if room != 'experiments' and clauses.match(ast.get_docstring(tree) or '')
  ]
  assert not found, found
