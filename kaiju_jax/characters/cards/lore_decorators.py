"""Reads decorators: lines such as `@@depth 4` before a lore entry's content.

Cards of version 3 have them. A line with `@@@` counts where the decorator
before it is not supported.
"""

from collections.abc import Callable
import re
from typing import Any

from kaiju_jax.characters.cards import card_json

MOST = 1000  # The most messages of a number of messages, as in SillyTavern.
ROLES = 'system', 'user', 'assistant'  # By SillyTavern's number.
POSITIONS = 'before_desc', 'after_desc', 'personality', 'scenario'
_DECORATOR = re.compile(r'(@@@?)\s*([a-z_]+)\s*(.*)', re.IGNORECASE)


def split(content: str) -> tuple[dict[str, Any], str, list[str]]:
  """Splits the decorators from a content.

  Returns:
    The decorators' values by name; the content behind them; a note per
    decorator that is not supported.
  """
  said: dict[str, Any] = {}
  notes: list[str] = []
  lines = content.lstrip().split('\n')
  if not lines[0].startswith('@@'):
    return said, content, notes
  begin, is_open = 0, False
  while begin < len(lines) and lines[begin].startswith('@@'):
    found = _DECORATOR.match(lines[begin])
    begin += 1
    if found is None:
      notes.append('content: a line that begins with @@ is left out')
      continue
    if found[1] == '@@@' and not is_open:
      continue  # A fallback, and what it stands for is supported.
    name = found[2].lower()
    parse = _PARSERS.get(name, lambda value: None)
    value = parse(found[3].strip())
    is_open = value is None
    if is_open:
      notes.append(f'content: @@{name[:60]}: not supported, ignored')
    else:
      said.setdefault(name, value)  # The first of several counts.
  return said, '\n'.join(lines[begin:]).strip('\n'), notes


def _whole(least: int) -> Callable[[str], int | None]:
  def parse(value: str) -> int | None:
    found = card_json.number(value)
    if found is None or found < least:
      return None
    return int(min(found, MOST))

  return parse


def _one_of(choices: tuple[str, ...]) -> Callable[[str], str | None]:
  return lambda value: value.lower() if value.lower() in choices else None


def _several(value: str) -> tuple[str, ...] | None:
  return tuple(x.strip() for x in value.split(',') if x.strip()) or None


def _depth(value: str) -> int | None:
  found = card_json.number(value)
  # A depth of less than 1 is behind the last message.
  return None if found is None else int(min(max(found, 0.0), MOST))


_PARSERS: dict[str, Callable[[str], Any]] = {
  'activate': lambda value: True,
  'dont_activate': lambda value: True,
  'keep_activate_after_match': lambda value: True,
  'dont_activate_after_match': lambda value: True,
  'activate_only_after': _whole(0),
  'activate_only_every': _whole(1),
  'depth': _depth,
  'role': _one_of(ROLES),
  'scan_depth': _whole(0),
  'position': _one_of(POSITIONS),
  'additional_keys': _several,
  'exclude_keys': _several,
}
