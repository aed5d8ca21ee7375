r"""Reads conversations from JSONL files, to fine-tune on them or on choices.

A line of a .jsonl file, which may be packed as .gz or .zst, is one
conversation, in one of three forms:

    {"messages": [{"role": "user", "content": "…"}, …]}
    {"conversations": [{"from": "human", "value": "…"}, …]}       ShareGPT
    {"segments": [{"text": "…", "parent": -1, "role": "user"}, …]}

Roles are system, user and assistant; ShareGPT's human and gpt are user and
assistant. One system message may come first. Then user and assistant
alternate, whichever begins, and at least one message is the assistant's. Other
fields of a line or message are ignored, but for these:

    "weight"    of a line or an assistant message: the factor of the loss of its
                tokens, a number of at least 0, by default 1; the two multiply
    "replies"   of an assistant message, instead of "content": the replies that
                a user could choose from by swiping, and which was kept

    {"messages": [{"role": "user", "content": "Hi!"},
                  {"role": "assistant", "replies": [
                    {"content": "Hello.", "kept": false},
                    {"content": "Hello, Ada!", "kept": true}]},
                  {"role": "user", "content": "…"}, …]}

At least one reply of a turn is kept, and the conversation goes on below it,
below the first if several are. A turn without a choice may have "content" or a
single reply. In segments, the replies of a turn are siblings that have
`"choice": "kept"` or `"swiped"`, and only a kept one has children.

Our guess: all fields beside those of the forms that others use. The sources
weight a loss of character consistency, without a formula; here it is a weight
on replies.
"""

from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
import math
from typing import Any
from typing import NamedTuple

from kaiju_jax.data import chat
from kaiju_jax.data import documents
from kaiju_jax.data import reading

_FORMS = ('messages', 'conversations', 'segments')
_SHARE_GPT = {
  'system': 'system',
  'human': 'user',
  'user': 'user',
  'gpt': 'assistant',
  'chatgpt': 'assistant',
  'assistant': 'assistant',
}
_CHOICES = {'kept': True, 'swiped': False}


class Candidate(NamedTuple):
  """One of the replies from which a user chose."""

  content: str
  is_kept: bool


class WeightedMessage(NamedTuple):
  """A message of a conversation."""

  role: str  # 'system', 'user' or 'assistant'.
  # Its text; with a choice, that of the first reply that was kept.
  content: str
  # Factor of its tokens' loss; read for assistant messages alone.
  weight: float = 1.0
  # The replies from which the user chose; () without a choice.
  replies: tuple[Candidate, ...] = ()


class Conversation(NamedTuple):
  """A conversation."""

  name: str  # The file's name, '#' and its number in the file, from 1 on.
  messages: tuple[WeightedMessage, ...]  # The messages, in order.


def read(path: str, field: str = 'data.path') -> Iterator[Conversation]:
  """Yields the conversations of a .jsonl file, a folder or glob of them.

  Files are read in the order of their names; `field` names `path` in errors.

  Raises:
    FileNotFoundError: nothing at `path`.
    OSError: a file or folder that cannot be read.
    ValueError: no conversation; or a line that is none, named with its fault.
  """
  if not path:
    raise ValueError(
      f'{field}={path!r}: must name a .jsonl file, folder or glob of'
      ' conversations.'
    )
  count = 0
  for name, file in documents.files(path, field):
    for number, messages in enumerate(reading.parse_lines(file, parse), 1):
      yield Conversation(f'{name}#{number}', messages)
      count += 1
  if not count:
    raise ValueError(f'{field}={path!r}: the files hold no conversation.')


def parse(record: Any, needs_reply: bool = True) -> tuple[WeightedMessage, ...]:
  """Returns the messages of a line, which is JSON's value `record`.

  Raises:
    ValueError: see the module's docstring, or `needs_reply` and there is no
      message of the assistant; names the message and its fault.
  """
  forms = [one for one in _FORMS if isinstance(record, dict) and one in record]
  if len(forms) != 1:
    raise ValueError(
      f'expected an object with one of {", ".join(map(repr, _FORMS))}, has'
      f' {forms or "none"}.'
    )
  (form,) = forms
  parts = record[form]
  if not isinstance(parts, list) or not parts:
    raise ValueError(f'{form!r} must be a list, not empty.')
  places = [f'{form}[{index}]' for index in range(len(parts))]
  for part, place in zip(parts, places):
    if not isinstance(part, dict):
      raise ValueError(f'{place}: expected an object, not {part!r}.')
  factor = _weight(record, 'the line')
  if form == 'segments':
    messages, places = _walk(parts, places, factor)
  else:
    messages = [
      _message(part, place, form, factor) for part, place in zip(parts, places)
    ]
  _check_order([one.role for one in messages], places, needs_reply)
  return tuple(messages)


def _message(
  part: Mapping[str, Any], place: str, form: str, factor: float
) -> WeightedMessage:
  """Returns a message of the first or second form."""
  if form == 'conversations':
    role = _role(part.get('from'), place, _SHARE_GPT)
    content = _content(part.get('value'), place, 'value')
    return WeightedMessage(role, content, factor * _weight(part, place))
  role = _role(part.get('role'), place, {one: one for one in chat.ROLES})
  weight = factor * _weight(part, place)
  if 'replies' not in part:
    content = _content(part.get('content'), place, 'content')
    return WeightedMessage(role, content, weight)
  if role != 'assistant' or 'content' in part:
    raise ValueError(
      f'{place}: "replies" stand in an assistant message, instead of "content".'
    )
  replies = part['replies']
  if not isinstance(replies, list) or not replies:
    raise ValueError(f'{place}: "replies" must be a list, not empty.')
  found = []
  for index, one in enumerate(replies):
    inside = f'{place}.replies[{index}]'
    kept = one.get('kept') if isinstance(one, dict) else None
    if not isinstance(kept, bool):
      raise ValueError(
        f'{inside}: expected an object with "content", and "kept": true or'
        ' false.'
      )
    found.append(
      Candidate(_content(one.get('content'), inside, 'content'), kept)
    )
  return _choice(found, weight, place)


def _choice(
  replies: Sequence[Candidate], weight: float, place: str
) -> WeightedMessage:
  """Returns the assistant message of which these are the replies."""
  kept = [one.content for one in replies if one.is_kept]
  if not kept:
    raise ValueError(
      f'{place}: none of the {len(replies)} replies is kept; one must be, the'
      ' reply below which the user went on.'
    )
  return WeightedMessage('assistant', kept[0], weight, tuple(replies))


def _walk(
  nodes: Sequence[Mapping[str, Any]], places: Sequence[str], factor: float
) -> tuple[list[WeightedMessage], list[str]]:
  """Returns the messages of segments, and their names in errors."""
  children: dict[int, list[int]] = {}
  for index, node in enumerate(nodes):
    parent = node.get('parent')
    if type(parent) is not int or not -1 <= parent < len(nodes):
      raise ValueError(
        f'{places[index]}: "parent" must be -1 or the index of a segment'
        f' (0…{len(nodes) - 1}), not {parent!r}.'
      )
    children.setdefault(parent, []).append(index)
  messages, found, seen, parent = [], [], 0, -1
  while parent in children:
    siblings = children[parent]
    first = places[siblings[0]]
    seen += len(siblings)
    messages.append(_turn([nodes[i] for i in siblings], first, factor))
    found.append(first)
    going_on = [i for i in siblings if i in children]
    for index in going_on:
      if len(going_on) > 1 or nodes[index].get('choice') == 'swiped':
        raise ValueError(
          f'{places[index]}: the conversation goes on below one reply of a turn'
          ' alone, which is kept.'
        )
    if not going_on:
      break
    (parent,) = going_on
  if seen < len(nodes):
    raise ValueError(
      f'{places[0]}: {len(nodes) - seen} of {len(nodes)} segments are not below'
      ' the first message.'
    )
  return messages, found


def _turn(
  siblings: Sequence[Mapping[str, Any]], place: str, factor: float
) -> WeightedMessage:
  """Returns the message that segments of one parent make."""
  roles = {one: one for one in chat.ROLES}
  role = _role(siblings[0].get('role'), place, roles)
  weight = factor * _weight(siblings[0], place)
  texts = [_content(one.get('text'), place, 'text') for one in siblings]
  choices = [one.get('choice') for one in siblings]
  if len(siblings) == 1 and choices[0] is None:
    return WeightedMessage(role, texts[0], weight)
  for one, choice in zip(siblings, choices):
    if one.get('role') != 'assistant' or choice not in _CHOICES:
      raise ValueError(
        f'{place}: segments of one parent must be replies of the assistant,'
        f' each with "choice": "kept" or "swiped", not {choice!r} of'
        f' {one.get("role")!r}.'
      )
  replies = [
    Candidate(text, _CHOICES[one]) for text, one in zip(texts, choices)
  ]
  return _choice(replies, weight, place)


def _role(name: Any, place: str, roles: Mapping[str, str]) -> str:
  if not isinstance(name, str) or name not in roles:
    raise ValueError(
      f'{place}: unknown role {name!r}; expected one of {", ".join(roles)}.'
    )
  return roles[name]


def _content(text: Any, place: str, key: str) -> str:
  if not isinstance(text, str):
    raise ValueError(f'{place}: "{key}" must be a string, not {text!r}.')
  try:
    clean = chat.strip(text)
  except ValueError as error:
    raise ValueError(f'{place}: "{key}": {error}') from error
  if not clean.strip():
    raise ValueError(f'{place}: "{key}" is empty.')
  return clean


def _weight(record: Mapping[str, Any], place: str) -> float:
  weight = record.get('weight', 1.0)
  is_number = type(weight) in (int, float)
  if not is_number or not 0 <= weight < math.inf:
    raise ValueError(
      f'{place}: "weight" must be a number of at least 0, not {weight!r}.'
    )
  return float(weight)


def _check_order(
  roles: Sequence[str], places: Sequence[str], needs_reply: bool
) -> None:
  """Refuses roles that do not alternate behind one system message."""
  first = 1 if roles[0] == 'system' else 0
  for index in range(first, len(roles)):
    before = roles[index - 1] if index > first else None
    if roles[index] == 'system' or roles[index] == before:
      raise ValueError(
        f'{places[index]}: role {roles[index]!r} follows'
        f' {roles[index - 1]!r}; one system message may come first, then user'
        ' and assistant alternate.'
      )
  if needs_reply and 'assistant' not in roles:
    raise ValueError('no assistant message, from which a model could learn.')
