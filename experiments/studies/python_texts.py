"""Sorts the text that every Python carries by kind: sources and targets.

Mixes need sources that differ, and here they must be at hand without a
download. The two targets stand in for the sources' objectives and are as
harmless as they are far away: reference prose that defines and explains for a
benchmark's questions, and sessions, in which two sides take turns, for a
conversation.
"""

import ast
import collections
from collections.abc import Iterator
import doctest
import importlib
import io
import pathlib
import tokenize

_SOURCES = 'code', 'comments', 'docstrings', 'messages', 'sessions'
_LEAST = 200  # Characters of a document.
_HOLDERS = (
  ast.Module,
  ast.ClassDef,
  ast.FunctionDef,
  ast.AsyncFunctionDef,
)


def write(out: str) -> None:
  """Writes a .jsonl file per kind into a new folder, and prints their sizes.

  Raises:
    OSError: the folder cannot be made.
    ValueError: the running Python carries no text of some kind.
  """
  from kaiju_jax.data.curation import collections as writer
  from kaiju_jax.storage import folders

  with folders.write_whole(out) as folder:
    for name, documents in _sorted().items():
      path = folder / f'{name}.jsonl'
      writer.write_lines(path, ((document, {}) for document in documents))
      characters = sum(len(one.segments[0]) for one in documents)
      print(f'{name}: {len(documents):,} documents, {characters:,} characters')


def write_annealing(folder: pathlib.Path) -> None:
  """Writes clean and noisy docstrings into a folder, and prints their sizes."""
  from kaiju_jax.data import docstrings
  from kaiju_jax.storage import files

  files.make_folder(folder)
  for name, texts in zip(('clean', 'noisy'), docstrings.read()):
    path = folder / f'{name}.jsonl'
    files.write_json_lines(path, ({'text': text} for text in texts))
    size = sum(len(text.encode()) for text in texts)
    print(f'{path}: {len(texts)} documents, {size:,} bytes.')


def _sorted() -> dict:
  """Returns {file without its suffix: documents}."""
  from kaiju_jax.data import documents as documents_lib
  from kaiju_jax.training import progress

  modules = [
    one
    for one in documents_lib.read('')
    if one.name.endswith('.py') and not one.name.startswith('pydoc_data/')
  ]
  found = {f'source_{kind}': [] for kind in _SOURCES}
  found |= {'target_reference': [], 'target_sessions': []}
  for module in progress.track(modules, 'sorting modules'):
    for kind, text in kinds(module.segments[0]).items():
      if kind == 'sessions' and documents_lib.is_held_out(module.name, 0.5):
        place = 'target_sessions'
      else:
        place = f'source_{kind}'
      if len(text) >= _LEAST:
        found[place].append(documents_lib.Document(module.name, (text,)))
  for topic, text in sorted(_topics().items()):
    if len(text) >= _LEAST:
      found['target_reference'].append(documents_lib.Document(topic, (text,)))
  empty = [name for name, documents in found.items() if not documents]
  if empty:
    raise ValueError(
      f'the running Python carries no text for {", ".join(empty)}; its standard'
      ' library must have its .py files.'
    )
  return found


def _topics() -> dict[str, str]:
  try:
    return importlib.import_module('pydoc_data.topics').topics
  except ImportError:
    return {}


def kinds(source: str) -> dict[str, str]:
  """Returns {kind: text} of a module; nothing where it cannot be parsed."""
  try:
    tree = ast.parse(source)
    comments = '\n'.join(_comments(source))
  except (SyntaxError, ValueError, tokenize.TokenError):
    return {}
  parts = collections.defaultdict(list)
  for holder in ast.walk(tree):
    if isinstance(holder, _HOLDERS):
      docstring = ast.get_docstring(holder)
      if docstring is not None:
        prose, sessions = _divided(docstring)
        parts['docstrings'].append(prose)
        parts['sessions'] += sessions
        holder.body = holder.body[1:] or [ast.Pass()]
  for node in ast.walk(tree):
    if isinstance(node, ast.Call):
      parts['messages'] += _sentences(node)
  parts['code'].append(ast.unparse(tree))
  parts['comments'].append(comments)
  return {
    kind: '\n\n'.join(filter(None, texts)) for kind, texts in parts.items()
  }


def _comments(source: str) -> Iterator[str]:
  for token in tokenize.generate_tokens(io.StringIO(source).readline):
    if token.type == tokenize.COMMENT:
      yield token.string.lstrip('#').strip()


def _divided(docstring: str) -> tuple[str, list[str]]:
  """Returns a docstring's prose, and the sessions in it."""
  try:
    parts = doctest.DocTestParser().parse(docstring)
  except ValueError:
    return docstring, []
  prose = ''.join(part for part in parts if isinstance(part, str))
  lines = []
  for part in parts:
    if isinstance(part, doctest.Example):
      first, *rest = part.source.rstrip('\n').split('\n')
      lines += [f'>>> {first}', *(f'... {line}' for line in rest)]
      lines += part.want.rstrip('\n').split('\n') if part.want else []
  return prose.strip(), ['\n'.join(lines)] if lines else []


def _sentences(call: ast.Call) -> list[str]:
  """Returns strings of three words and more that stand directly in a call."""
  return [
    one.value
    for one in call.args
    if isinstance(one, ast.Constant)
    and isinstance(one.value, str)
    and len(one.value.split()) >= 3
  ]
