"""Reads when and where a lore entry's text enters a prompt.

An entry says it in three places: in its own fields, in the fields that other
programs export (`Lore.other`), and in decorators, lines such as `@@depth 4`
before its content (cards of version 3). They mean here what they mean in
SillyTavern and in the specifications of versions 2 and 3. What this project
does not support is named by `read`, and cards' notes list it.

A key in slashes (`/cats?/i`) is a pattern. Patterns come from strangers and are
not run. An entry whose conditions name one is not told, because nothing says
that they hold.
"""

from collections.abc import Mapping
import dataclasses
import re
from typing import Any

from kaiju_jax.characters.cards import card_fields
from kaiju_jax.characters.cards import card_json
from kaiju_jax.characters.cards import lore_decorators

SCANNED = 2  # Messages in which keys are searched, as SillyTavern's default.
DEPTH = 4  # The default of a text that stands within the chat, as there.
DEPTH_PROMPT = 'depth_prompt'
MOST = lore_decorators.MOST
# By SillyTavern's numbers of `selectiveLogic` and of `position`.
_LOGICS = 'and_any', 'not_all', 'not_any', 'and_all'
_ROLES = lore_decorators.ROLES
_BEFORE, _AFTER, _AT_DEPTH, _OUTLET = 0, 1, 4, 7
# The places in a character's prefix; `after_char` is behind the scenario.
POSITIONS = (*lore_decorators.POSITIONS, 'after_char')
# A slash within a pattern is escaped.
_PATTERN = re.compile(r'/(?:[^/\\]|\\.)++/([gimsuy]*)', re.DOTALL)
# Values by which SillyTavern decides more, and what happens here.
_UNSUPPORTED = {
  'group': 'all entries of a group may be told',
  'sticky': 'a text that was told stays',
  'cooldown': 'a text that was told stays',
  'vectorized': 'entries are found by keys alone',
  'ignore_budget': 'all lore has the same budget',
  'character_filter': 'not used',
  'match_persona_description': 'messages alone are searched',
  'match_character_description': 'messages alone are searched',
  'match_character_personality': 'messages alone are searched',
  'match_character_depth_prompt': 'messages alone are searched',
  'match_scenario': 'messages alone are searched',
  'match_creator_notes': 'messages alone are searched',
}
# What `read` reads of `Lore.other` and of the extensions in it.
READ = {
  *(
    'extensions',
    'selectiveLogic',
    'probability',
    'useProbability',
    'position',
  ),
  *('depth', 'role', 'scan_depth', 'case_sensitive', 'match_whole_words'),
  *('delay', 'delay_until_recursion'),
}


@dataclasses.dataclass(frozen=True)
class Condition:
  """A condition on the keys that the searched messages have."""

  logic: str  # 'and_any', 'and_all', 'not_any' or 'not_all'.
  keys: tuple[str, ...]  # The keys.


@dataclasses.dataclass(frozen=True)
class Rule:
  """When and where a lore entry's text enters a prompt."""

  text: str  # The text, without decorators.
  # One of them must be in the searched messages, unless the entry
  # `is_constant`.
  keys: tuple[str, ...] = ()
  conditions: tuple[Condition, ...] = ()  # All must hold, too.
  is_enabled: bool = True  # Whether the entry is used at all.
  is_constant: bool = False  # Whether it needs no key.
  is_case_sensitive: bool = False  # Whether keys must have the messages' case.
  # Whether a key that is one word must be a whole word.
  is_whole_word: bool = True
  scan_depth: int = SCANNED  # The number of last messages that are searched.
  # The chance of a text that may be told, in percent.
  probability: float = 100.0
  replies: int = 0  # The number of replies before the text may be told.
  every: int = 1  # The number of replies must be divisible by it.
  messages: int = 0  # The number of messages before the text may be told.
  # Whether it is not told again, even after it was dropped.
  is_once: bool = False
  # The number of messages behind the text, if it `is_constant` and stands
  # within the chat; None for a text in the prefix.
  depth: int | None = None
  role: str = 'system'  # The role of the text within the chat.
  position: str = 'after_char'  # One of `POSITIONS`, for a text in the prefix.

  @property
  def is_in_prefix(self) -> bool:
    """Whether the text stands in the prefix."""
    return self._is_unconditional and self.depth is None

  @property
  def is_standing(self) -> bool:
    """Whether the text stands within every chat, before its last message."""
    return self._is_unconditional and bool(self.depth)

  @property
  def _is_unconditional(self) -> bool:
    is_certain = self.probability == 100 and not self.conditions
    begins = not self.replies and not self.messages and self.every == 1
    return self.is_constant and is_certain and begins


def read(
  entry: card_fields.Lore, scanned: int = SCANNED
) -> tuple[Rule, list[str]]:
  """Returns an entry's rule, and a note per part that is not supported.

  Args:
    entry: the entry.
    scanned: the messages that are searched where the entry names no number.
  """
  reader = _Reader(entry, scanned)
  return reader.rule(), reader.notes


def scan_depth(book: Mapping[str, Any]) -> int:
  """Returns the number of last messages that a book's entries search."""
  found = card_json.number(book.get('scan_depth'))
  return int(min(found, MOST)) if found and found >= 1 else SCANNED


def depth_prompt(fields: card_fields.Fields) -> card_fields.Lore | None:
  """Returns the text that a character's `depth_prompt` puts into the chat.

  SillyTavern keeps this text among the extensions: {"prompt", "depth", "role"}.
  """
  found = fields.extensions.get(DEPTH_PROMPT)
  if not isinstance(found, Mapping) or not isinstance(found.get('prompt'), str):
    return None
  if not found['prompt'].strip():
    return None
  place = {name: found.get(name) for name in ('depth', 'role')}
  return card_fields.Lore(
    content=found['prompt'],
    is_constant=True,
    other={'extensions': {'position': _AT_DEPTH, **place}},
  )


def is_pattern(key: str) -> bool:
  """Returns whether a key is a pattern, such as /cats?/i, and not words."""
  found = _PATTERN.fullmatch(key) if key.startswith('/') else None
  return found is not None and len(set(found[1])) == len(found[1])


def _is_set(value: Any) -> bool:
  """Returns whether a value is more than what programs write for none."""
  if isinstance(value, Mapping):
    return any(map(_is_set, value.values()))
  return bool(value)


class _Reader:
  """Reads one entry."""

  def __init__(self, entry: card_fields.Lore, scanned: int):
    self._scanned = scanned
    self._entry = entry
    found = entry.other.get('extensions')
    self._extensions = found if isinstance(found, Mapping) else {}
    split = lore_decorators.split(entry.content)
    self._decorators, self._text, self.notes = split

  def rule(self) -> Rule:
    entry, said = self._entry, self._decorators
    position, depth = self._place()
    keys = self._words('keys', entry.keys)
    is_enabled = entry.is_enabled and self._may_be_told()
    if 'dont_activate' in said and 'activate' not in said:
      is_enabled = False
    conditions, is_known = self._conditions()
    for name, why in _UNSUPPORTED.items():
      if _is_set(self._get(name)):
        self.notes.append(f'{name}: {why}')
    return Rule(
      text=self._text,
      keys=keys,
      conditions=conditions,
      is_enabled=is_enabled and is_known,
      is_constant=entry.is_constant or 'activate' in said,
      is_case_sensitive=self._flag('case_sensitive', False),
      is_whole_word=self._flag('match_whole_words', True),
      scan_depth=said.get(
        'scan_depth', self._count('scan_depth', self._scanned)
      ),
      probability=self._probability(),
      replies=said.get('activate_only_after', 0),
      every=said.get('activate_only_every', 1),
      messages=self._count('delay', 0),
      is_once='dont_activate_after_match' in said,
      depth=depth,
      role=said.get('role') or self._role(),
      position=position,
    )

  def _conditions(self) -> tuple[tuple[Condition, ...], bool]:
    """Returns the conditions, and whether all of them can be decided."""
    said = self._decorators
    logic = self._choice('selectiveLogic', _LOGICS, 'and_any')
    if 'activate' in said:
      return (), True
    secondary = () if self._entry.is_constant else self._entry.secondary_keys
    found = [
      (logic, 'secondary_keys', secondary),
      ('and_any', 'content: @@additional_keys', said.get('additional_keys')),
      ('not_any', 'content: @@exclude_keys', said.get('exclude_keys')),
    ]
    conditions, is_known = [], True
    for logic, name, keys in found:
      if not keys:
        continue
      kept = self._words(name, keys)
      # One key that is found is enough for 'and_any'; one that is missing, for
      # 'not_all'.
      can_hold = kept and logic in ('and_any', 'not_all')
      is_known = is_known and (len(kept) == len(keys) or bool(can_hold))
      conditions.append(Condition(logic, kept))
    return tuple(conditions), is_known

  def _words(self, name: str, keys: tuple[str, ...]) -> tuple[str, ...]:
    kept = tuple(key for key in keys if not is_pattern(key))
    if len(kept) < len(keys):
      self.notes.append(f'{name}: patterns (regex) are not run')
    return kept

  def _may_be_told(self) -> bool:
    """Returns whether an entry can be told here at all."""
    if card_json.flag(self._get('delay_until_recursion')):
      self.notes.append(
        'delay_until_recursion: lore is not searched for keys, so'
        ' that the entry is never told'
      )
      return False
    if card_json.number(self._get('position')) == _OUTLET:
      self.notes.append(
        'position: outlets are not supported, so that the entry is never told'
      )
      return False
    return True

  def _place(self) -> tuple[str, int | None]:
    """Returns the position in the prefix, and the depth within the chat."""
    said = self._decorators
    is_constant = self._entry.is_constant or 'activate' in said
    found = card_json.number(self._get('position'))
    is_before = found == _BEFORE or self._get('position') == 'before_char'
    position = 'before_desc' if is_before else 'after_char'
    depth = said.get('depth')
    if 'position' in said:
      position, depth = said['position'], None
    elif depth is None and found == _AT_DEPTH:
      depth = self._count('depth', DEPTH)
    elif depth is None and found not in (None, _BEFORE, _AFTER, _OUTLET):
      self.notes.append(
        'position: not supported; the text stands behind the'
        f' {"scenario" if is_constant else "message that calls for it"}'
      )
    if depth is not None and not is_constant:
      self.notes.append(
        'depth: the text stands behind the message that calls for it, and'
        ' stays there'
      )
    elif 'position' in said and not is_constant:
      self.notes.append(
        'content: @@position: the text stands behind the message that calls for'
        ' it'
      )
    elif depth:
      self.notes.append(
        f'depth: the text is repeated so that 0 to {2 * depth} messages stand'
        ' behind it'
      )
    return position, depth if is_constant else None

  def _probability(self) -> float:
    if card_json.flag(self._get('useProbability')) is False:
      return 100.0
    found = self._get('probability')
    percent = card_json.number(found)
    if percent is None:
      if found is not None:
        self._refuse('probability', found, '100')
      return 100.0
    return min(max(percent, 0.0), 100.0)

  def _role(self) -> str:
    if card_json.number(self._get('position')) != _AT_DEPTH:
      return 'system'
    found = self._get('role')
    if isinstance(found, str) and found.strip().lower() in _ROLES:
      return found.strip().lower()
    return self._choice('role', _ROLES, 'system')

  def _choice(self, name: str, choices: tuple[str, ...], default: str) -> str:
    found = self._get(name)
    index = card_json.number(found)
    if index in range(len(choices)):
      return choices[int(index)]
    if found not in (None, ''):
      self._refuse(name, found, default)
    return default

  def _count(self, name: str, default: int) -> int:
    found = self._get(name)
    count = card_json.number(found)
    if count is None or count < 0:
      if found not in (None, ''):
        self._refuse(name, found, str(default))
      return default
    return int(min(count, MOST))

  def _get(self, name: str) -> Any:
    """Returns a value of the extensions, or of the entry itself."""
    found = self._extensions.get(name)
    return self._entry.other.get(name) if found is None else found

  def _flag(self, name: str, default: bool) -> bool:
    found = self._get(name)
    said = default if found is None else card_json.flag(found)
    if said is None:
      self._refuse(name, found, str(default).lower())
      return default
    return said

  def _refuse(self, name: str, value: Any, taken: str) -> None:
    shown = card_fields.abbreviate(value)
    self.notes.append(f'{name}={shown}: not known, read as {taken}')
