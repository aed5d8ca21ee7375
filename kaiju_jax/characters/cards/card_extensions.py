"""Drops the executable parts of cards' extensions, other programs' data.

Programs put scripts, patterns, markup and addresses of pictures into a card's
`extensions`. This project never reads them. It still drops them, so that an
exported card does not carry them into a program that would.
"""

import re
from typing import Any

# The words of a name in camel case or with signs between them.
_WORD = re.compile('[A-Z]+(?![a-z])|[A-Z]?[a-z]+')
# Words by which other programs name values that they run or render.
_EXECUTES = {
  *('automation', 'code', 'css', 'eval', 'function', 'functions', 'hook'),
  *('hooks', 'html', 'javascript', 'js', 'lua', 'macro', 'macros', 'plugin'),
  *('plugins', 'python', 'regex', 'regexes', 'script', 'scripts'),
  *('stylesheet', 'trigger', 'triggers', 'triggerscript', 'virtualscript'),
  'wasm',
}
_ADDRESS = re.compile(
  r'\s*(?:(?:blob|data|embeded|embedded|file|ftp|https?|javascript|wss?):|//)',
  re.IGNORECASE,
)
# The names between angle brackets are macros and the mark of an example.
_MARKUP = re.compile(r'<\s*(?!(?:user|bot|char|start)>)[a-z!/?]', re.IGNORECASE)


# Fields of texts that people or a model read, as a card's own: markup and
# addresses in them are text.
_TEXTS = {
  *('comment', 'creator_notes_multilingual', 'depth_prompt'),
  'group_only_greetings',
}


def filter_plain(value: Any, name: str) -> tuple[Any, list[str]]:
  """Returns plain data without executable parts.

  Args:
    value: a JSON value, not deeper than the interpreter's stack.
    name: the value's name in the notes.

  Returns:
    The filtered value; a note per dropped part.
  """
  notes: list[str] = []
  return _filter_plain(value, name, notes), notes


def _filter_plain(
  value: Any, name: str, notes: list[str], is_text: bool = False
) -> Any:
  if isinstance(value, dict):
    left = {}
    for key, inner in value.items():
      may_mark = is_text or key in _TEXTS
      fault = _fault(inner, str(key), may_mark)
      if not fault and not isinstance(inner, (dict, list)):
        left[key] = inner
        continue
      within = f'{name}.{ascii(key)[1:-1][:60]}'
      if fault:
        notes.append(f'{within}: {fault}, dropped')
      else:
        left[key] = _filter_plain(inner, within, notes, may_mark)
    return left
  if isinstance(value, list):
    left = []
    for index, inner in enumerate(value):
      fault = _fault(inner, '', is_text)
      if fault:
        notes.append(f'{name}[{index}]: {fault}, dropped')
      elif isinstance(inner, (dict, list)):
        left.append(_filter_plain(inner, f'{name}[{index}]', notes, is_text))
      else:
        left.append(inner)
    return left
  return value


def _fault(value: Any, key: str, is_text: bool) -> str:
  # An empty list of scripts, a number and a flag stay: they execute nothing.
  if not value or not isinstance(value, (str, list, dict)):
    return ''
  if key and {word.lower() for word in _WORD.findall(key)} & _EXECUTES:
    return 'may execute'
  if isinstance(value, str) and not is_text:
    if _ADDRESS.match(value):
      return 'an address'
    if _MARKUP.search(value):
      return 'markup'
  return ''
