"""Renders chats of marks, to see what a template writes around and to texts."""

from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Sequence
import itertools
import re

from kaiju_jax.data import chat as chat_lib
from kaiju_jax.interchange.templates import rendering
from kaiju_jax.interchange.templates import steps as steps_lib
from kaiju_jax.interchange.templates import walks

# Roles by their first letters, and the opening of a reply. Of two chats with
# the same pair of roles the first gives the glue.
_CHATS = (
  *('u>', 'uau>', 'su>', 'suau>'),
  *('ssu>', 'us>', 'usau>', 'uasu>', 'uu>', 'au>', 'sau>', 'uaau>'),
  *('s>', 'ua>', 'sa>', 'ss>', 'uas>'),
)
# The same without an opening.
_CLOSED = ('ua', 'u', 's', 'sua')
# If all of these are stripped from a text, so is whatever Python calls a space.
_SPACES = ' \t\n\u3000'
_NAMES = {one[0]: one for one in chat_lib.ROLES}
# Where texts stand that may hold what a template looks for.
_NAMING = (
  *(('', 'system'), ('', 'user'), ('system', 'user')),
  *(('user', 'assistant'), ('assistant', 'user')),
)
# The place of a user's text behind a system text that a template moves later,
# and the place behind an empty system text.
MOVED, SKIPPED = 'system user', 'skipped'


def learn(render: Callable) -> steps_lib.Glue:
  """Returns the glue of the chats of marks that a template renders.

  It need not hold for other chats.

  Args:
    render: `rendering.Renderer.render`.

  Raises:
    ValueError: the template does not render chats of a user and an assistant.
  """
  marked = dict(zip((*_CHATS, *_CLOSED), _cut_all(render)))
  for chat in 'u>', 'uau>':
    if isinstance(marked[chat], rendering.Refusal):
      raise ValueError(
        f'chat_template: does not render a chat of {len(chat) - 1} messages:'
        f' {marked[chat].reason}; give another template (--template=FILE).'
      )
  steps, replies, ends, witnesses = {}, {}, {}, {}
  for chat, cut in marked.items():
    if isinstance(cut, rendering.Refusal):
      continue
    after, is_open = '', chat.endswith(steps_lib.REPLY)
    for index, (role, text) in enumerate(zip(_roles(chat), cut)):
      if is_open and (after, role) not in steps:
        steps[after, role] = steps_lib.Step(text, role)
        witnesses[after, role] = chat, index
      after = role
    (replies if is_open else ends).setdefault(after, cut[-1])
  if ('system', 'user') in steps and isinstance(
    marked['suau>'], rendering.Refusal
  ):
    # The system text moves, or is refused, once the user has spoken again.
    steps['system', 'user'] = steps['system', 'user']._replace(place=MOVED)
    replies[MOVED] = marked['su>'][-1]
  strips = _find_strips(render, witnesses)
  steps = {
    key: step._replace(strips=strips[key]) for key, step in steps.items()
  }
  return steps_lib.Glue(steps, replies, ends)


def _cut_all(render: Callable) -> list[list[str] | rendering.Refusal]:
  """Returns the texts around the marks of each chat.

  Returns:
    For n messages n + 1 texts; or a refusal where a mark is missing, comes
    twice or in another order.
  """
  chats = (*_CHATS, *_CLOSED)
  marked = [
    rendering.Chat(_marked(one), one.endswith(steps_lib.REPLY)) for one in chats
  ]
  return [_cut(one, chat) for one, chat in zip(render(marked), chats)]


def _marked(chat: str) -> walks.Messages:
  return tuple(
    (role, _mark(number)) for number, role in enumerate(_roles(chat))
  )


def _roles(chat: str) -> list[str]:
  return [_NAMES[one] for one in chat.removesuffix(steps_lib.REPLY)]


def _mark(number: int) -> str:
  return f'Zq{number}xW'


def _cut(
  text: str | rendering.Refusal, chat: str
) -> list[str] | rendering.Refusal:
  if isinstance(text, rendering.Refusal):
    return text
  parts = []
  for number in range(len(_roles(chat))):
    mark = _mark(number)
    if text.count(mark) != 1:
      return rendering.Refusal(f'message {number + 1} is moved or left out')
    before, text = text.split(mark)
    parts.append(before)
  return [*parts, text]


def _find_strips(render: Callable, witnesses) -> dict[steps_lib.Key, tuple]:
  """Returns what is stripped from a text's left and right end, by step.

  Args:
    render: `rendering.Renderer.render`.
    witnesses: by step, a chat and the message that has the step.
  """
  chats = {}
  for key, (chat, index) in witnesses.items():
    messages = _marked(chat)
    chats[key] = messages
    for space, is_left in itertools.product(_SPACES, (True, False)):
      role, mark = messages[index]
      text = space + mark if is_left else mark + space
      changed = (*messages[:index], (role, text), *messages[index + 1 :])
      chats[key, space, is_left] = changed
  texts = dict(zip(chats, render([rendering.Chat(x) for x in chats.values()])))
  strips = {}
  for key in witnesses:
    ends = [
      ''.join(
        space for space in _SPACES if texts[key, space, is_left] == texts[key]
      )
      for is_left in (True, False)
    ]
    strips[key] = tuple(
      steps_lib.SPACES if one == _SPACES else one for one in ends
    )
  return strips


def name_texts(
  glue: steps_lib.Glue, render: Callable, literals: Sequence[str]
) -> steps_lib.Glue:
  """Returns the glue with what the template does to certain texts.

  Those are empty texts, and texts that hold what the template itself names,
  because it may look for that in a text. A difference says that such a text is
  written as any other.

  Args:
    glue: the glue of all chats.
    render: `rendering.Renderer.render`.
    literals: the strings that the template names.
  """
  tried = {(key, steps_lib.EMPTY): ['', ' ', '\n\n'] for key in glue.steps}
  literals = [one for one in dict.fromkeys(literals) if one.strip()]
  keys = [key for key in _NAMING if key in glue.steps]
  for key, (pattern, texts) in itertools.product(keys, _texts_of(literals)):
    tried[key, pattern] = texts
  chats = {
    (key, pattern): [chat for text in texts for chat in _place(glue, key, text)]
    for (key, pattern), texts in tried.items()
  }
  rendered = iter(
    render([rendering.Chat(one) for some in chats.values() for one in some])
  )
  texts = {tried: [next(rendered) for _ in chats[tried]] for tried in chats}
  found: dict[str, set[str]] = {}
  for (key, pattern), some in chats.items():
    rendered = dict(zip(some, texts[key, pattern]))
    if _holds(glue, rendered):
      continue
    others = (
      _skip_empty(glue, key, rendered) if pattern == steps_lib.EMPTY else ()
    )
    other = next((one for one in others if _holds(one, rendered)), None)
    if other is None:
      found.setdefault(pattern, set()).add(key[1])
    else:
      glue = other
  return glue._replace(
    differences=(*glue.differences, *_describe(glue, found, literals))
  )


def _holds(glue: steps_lib.Glue, rendered) -> bool:
  """Returns whether a template renders chats as the glue writes them."""
  return all(
    text == glue.write(one)
    for one, text in rendered.items()
    if glue.can_write(one)
  )


def _skip_empty(
  glue: steps_lib.Glue, key: steps_lib.Key, rendered
) -> Iterator[steps_lib.Glue]:
  """Yields glue in which a step leaves empty system texts out."""
  if key[1] != 'system':
    return
  step = glue.steps[key]
  steps = {**glue.steps, key: step._replace(skips_to=key[0])}
  alone = rendered.get((('system', ''),))
  if not isinstance(alone, str) or ('', 'assistant') not in steps:
    alone = None
  replies = {} if alone is None else {'': alone}
  yield glue._replace(steps=steps, replies={**replies, **glue.replies})
  if key[0]:
    return
  # A system text that follows may be none that opens the chat.
  steps[key] = step._replace(skips_to=SKIPPED)
  for role in 'user', 'assistant':
    if ('', role) in steps:
      steps[SKIPPED, role] = steps['', role]
  replies = {} if alone is None else {SKIPPED: alone}
  yield glue._replace(steps=steps, replies={**glue.replies, **replies})


def _texts_of(literals: Sequence[str]) -> Iterator[tuple[str, list[str]]]:
  """Yields patterns and texts of which a template may think the same."""
  for one in literals:
    yield re.escape(one.strip()), [one.strip(), f'tea {one} rain']
  for one, other in itertools.pairwise(literals):
    pair = [re.escape(x.strip()) for x in (one, other)]
    texts = [f'{one.strip()} tea {other.strip()}']
    yield r'[\s\S]*'.join(pair), texts


def _place(
  glue: steps_lib.Glue, key: steps_lib.Key, text: str
) -> Iterator[walks.Messages]:
  """Yields chats with a text at a step, none that is known to differ."""
  place, role = key
  paths = walks.find_paths(glue)
  if place not in paths:
    return
  before = [(one, text and 'tea') for one, text in paths[place]]
  for rest in (), ('user',), ('assistant', 'user'), ('system', 'user'):
    chat = (*before, (role, text), *((one, 'rain') for one in rest))
    if glue.is_own(chat) or not glue.can_write(chat):
      yield chat


def _describe(
  glue: steps_lib.Glue, found: dict[str, set[str]], literals: Sequence[str]
) -> Iterator[steps_lib.Difference]:
  """Yields the differences of texts, those of the same roles together."""
  names = {re.escape(one.strip()): one.strip() for one in literals}
  grouped: dict[tuple[str, ...], list[str]] = {}
  for pattern, roles in found.items():
    roles = tuple(one for one in chat_lib.ROLES if one in roles)
    if pattern == steps_lib.EMPTY:
      kind = f'empty {", ".join(roles)} texts are written as any others'
      yield _of_roles(glue, kind, roles, pattern)
    elif not any(
      one in pattern and one != pattern and set(roles) <= found[one]
      for one in found
    ):
      grouped.setdefault(roles, []).append(pattern)
  for roles, patterns in grouped.items():
    shown = ', '.join(
      ' … '.join(repr(names[x]) for x in one.split(r'[\s\S]*'))
      for one in patterns
    )
    note = f'{", ".join(roles)} texts with {shown} are written as they stand'
    yield _of_roles(glue, note, roles, '|'.join(patterns))


def _of_roles(glue, note: str, roles, pattern: str) -> steps_lib.Difference:
  keys = tuple(sorted(key for key in glue.steps if key[1] in roles))
  return steps_lib.Difference(note, keys, pattern)
