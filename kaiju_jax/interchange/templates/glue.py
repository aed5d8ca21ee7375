"""Finds out by trial which text a chat template puts between messages.

A template is a program that renders a whole chat. A cache needs more: the
prompt of a turn must begin with the prompt of the turn before and its reply.
So a template is run a few times at start, on chats whose texts are marks, and
never again. The *glue* is what stands between two marks:

    <|im_start|>user\\nMARK<|im_end|>\\n<|im_start|>assistant\\nMARK …
                      └────────── glue ─────────────────┘

A chat's text is then glue and texts in turn, where the glue depends on the
place alone, which is the role of the message before. `find` holds this to the
template itself on random chats. Where a template refuses a chat that we need,
or moves what stands already, an *adaptation* says what is done instead.

Our guess: the adaptations.
"""

from collections.abc import Callable
from collections.abc import Sequence
import itertools
import random as random_lib
from typing import NamedTuple

from kaiju_jax.data import chat as chat_lib
from kaiju_jax.interchange.templates import rendering

# A user's line where a template wants one and nobody has spoken.
LINE = 'Hello.'
# The marks around the reasoning of a reply.
THOUGHT = ('<think>', '</think>')
# Between texts that share a turn.
JOINT = '\n\n'
_SPACES = ' \t\n'
# Roles by their first letters, and the opening of a reply. Of two chats with
# the same pair of roles the first gives the glue.
_CHATS = (
  *('u>', 'uau>', 'su>', 'suau>'),
  *(
    'ssu>',
    'us>',
    'usau>',
    'uasu>',
    'uu>',
    'au>',
    'sau>',
    'uaau>',
    's>',
    'ua>',
  ),
)
_REPLY = '>'
_PLAIN = (
  *(('', 'user'), ('', 'system'), ('system', 'user')),
  *(('user', 'assistant'), ('assistant', 'user'), ('user', _REPLY)),
)
_RANDOM = 25
_WORDS = (
  *('tea', '"rain"', "it's", '{{name}}', '<b>bold</b>', '3.5', '&', 'naïve'),
  *(
    '東京',
    '👍🏽',
    '(x)',
    '[y]',
    'two\nlines',
    'three\n\nmore',
    '{% if %}',
    '$5',
  ),
)


class Glue(NamedTuple):
  """The text between messages, by the place before them.

  Attributes:
    steps: (text, place behind) by (place, role).
    replies: the text that opens a reply, by place.
    strips: by role, the characters that are stripped from a text's left and
      right end.
    adaptations: what differs from the template, in words.
  """

  steps: dict[tuple[str, str], tuple[str, str]]
  replies: dict[str, str]
  strips: dict[str, tuple[str, str]]
  adaptations: tuple[str, ...]

  def write(self, messages: Sequence[chat_lib.Pair]) -> str:
    """Returns the text of messages and of a reply's opening."""
    parts, after = [], ''
    for role, text in messages:
      step, after = self.steps[after, role]
      parts += (step, self.clean(role, text))
    return ''.join([*parts, self.replies[after]])

  def clean(self, role: str, text: str) -> str:
    """Returns a text without what the template strips."""
    left, right = self.strips[role]
    return text.lstrip(left).rstrip(right)


def find(render: Callable, keeps_thoughts: bool = False) -> Glue:
  """Returns a template's glue, adapted so that it takes all chats.

  Args:
    render: `rendering.Renderer.render`.
    keeps_thoughts: whether the history holds the reasoning of replies.

  Raises:
    ValueError: the template does not render chats of a user and an assistant,
      or they are more than glue and texts.
  """
  marked = dict(zip(_CHATS, _cut_all(render, _CHATS)))
  for chat in 'u>', 'uau>':
    if isinstance(marked[chat], rendering.Refusal):
      raise ValueError(
        f'chat_template: does not render a chat of {len(chat) - 1} messages:'
        f' {marked[chat].reason}; give another template (--template=FILE).'
      )
  native = Glue({}, {}, _find_strips(render, marked), ())
  for chat, cut in marked.items():
    if isinstance(cut, rendering.Refusal):
      continue
    after = ''
    for role, text in zip(_roles(chat), cut):
      native.steps.setdefault((after, role), (text, role))
      after = role
    native.replies.setdefault(after, cut[-1])
  moves_system = ('', 'system') in native.steps and isinstance(
    marked['suau>'], rendering.Refusal
  )
  verified = _verify(native, render, moves_system)
  return _adapt(verified, moves_system, keeps_thoughts)


def _cut_all(
  render: Callable, chats: Sequence[str]
) -> list[list[str] | rendering.Refusal]:
  """Returns the texts around the marks of each chat.

  Args:
    render: `rendering.Renderer.render`.
    chats: see `_CHATS`.

  Returns:
    For n messages n + 1 texts; or a refusal where a mark is missing, comes
    twice or in another order.
  """
  marked = [rendering.Chat(_marked(one)) for one in chats]
  return [_cut(one, chat) for one, chat in zip(render(marked), chats)]


def _marked(chat: str) -> tuple[chat_lib.Pair, ...]:
  return tuple(
    (role, _mark(number)) for number, role in enumerate(_roles(chat))
  )


def _roles(chat: str) -> list[str]:
  names = {one[0]: one for one in chat_lib.ROLES}
  return [names[one] for one in chat.removesuffix('>')]


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


def _find_strips(render: Callable, marked) -> dict[str, tuple[str, str]]:
  """Returns, by role, what is stripped from a text's left and right end."""
  has_system = not isinstance(marked['su>'], rendering.Refusal)
  chats = {'user': 'uau>', 'assistant': 'uau>'}
  chats |= {'system': 'su>'} if has_system else {}
  plain, padded = {}, {}
  for role, chat in chats.items():
    messages = _marked(chat)
    plain[role] = rendering.Chat(messages)
    index = _roles(chat).index(role)
    for space, is_left in itertools.product(_SPACES, (True, False)):
      mark = messages[index][1]
      text = space + mark if is_left else mark + space
      changed = (*messages[:index], (role, text), *messages[index + 1 :])
      padded[role, space, is_left] = rendering.Chat(changed)
  all_chats = [*plain.values(), *padded.values()]
  texts = dict(zip([*plain, *padded], render(all_chats)))
  strips = {
    role: tuple(
      ''.join(
        space for space in _SPACES if texts[role, space, is_left] == texts[role]
      )
      for is_left in (True, False)
    )
    for role in chats
  }
  return {'system': strips['user'], **strips}


def _verify(native: Glue, render: Callable, moves_system: bool) -> Glue:
  """Returns the part of the glue that holds for random chats.

  A chat in which user and assistant alternate, behind at most one system text,
  must hold. Other steps and replies are left out if their chats do not hold.

  Raises:
    ValueError: a chat that must hold does not.
  """
  (differs,) = _compare([_only(native, ())], render, moves_system)
  if differs:
    # Some strip a text here and not there: then no text has spaces at its ends.
    native = native._replace(
      strips=dict.fromkeys(native.strips, (_SPACES, _SPACES)),
      adaptations=('texts lose the spaces at both ends',),
    )
    (differs,) = _compare([_only(native, ())], render, moves_system)
  if differs:
    raise differs
  others = [
    *(key for key in native.steps if key not in _PLAIN),
    *((after, _REPLY) for after in native.replies if after != 'user'),
  ]
  if moves_system:
    others = [key for key in others if 'system' not in key]
  tried = [_only(native, [key]) for key in others]
  found = _compare(tried, render, moves_system)
  kept = [key for key, differs in zip(others, found) if not differs]
  # Steps that hold one by one may not hold together.
  choices = [
    _only(native, kept),
    _only(native, [key for key in kept if key[1] != _REPLY]),
    _only(native, ()),
  ]
  found = _compare(choices, render, moves_system)
  return next(one for one, differs in zip(choices, found) if not differs)


def _only(native: Glue, keys: Sequence[tuple[str, str]]) -> Glue:
  """Returns the glue of plain chats, with some more steps and replies."""
  keys = {*_PLAIN, *keys}
  return native._replace(
    steps={key: step for key, step in native.steps.items() if key in keys},
    replies={
      after: reply
      for after, reply in native.replies.items()
      if (after, _REPLY) in keys
    },
  )


def _compare(
  glues: Sequence[Glue], render: Callable, moves_system: bool
) -> list[ValueError | None]:
  """Returns how the template differs from each glue on random chats, if so."""
  chats = [
    draw_chats(random_lib.Random(0), one, _RANDOM, moves_system)
    for one in glues
  ]
  texts = iter(render([rendering.Chat(one) for some in chats for one in some]))
  found = []
  for glue, some in zip(glues, chats):
    compared = [(chat, next(texts), glue.write(chat)) for chat in some]
    differences = (_differ(*one) for one in compared if one[1] != one[2])
    found.append(next(differences, None))
  return found


def draw_chats(
  random: random_lib.Random, glue: Glue, count: int, moves_system: bool = False
) -> list[tuple[chat_lib.Pair, ...]]:
  """Returns random chats that a reply can follow.

  Args:
    random: draws them.
    glue: its steps are taken.
    count: number of chats.
    moves_system: whether a system text must come with one user text alone.
  """
  is_ragged = set(glue.strips.values()) != {(_SPACES, _SPACES)}
  chats = []
  while len(chats) < count:
    roles = _random_roles(random, glue.steps)
    if moves_system and 'system' in roles:
      roles = ['system', 'user']
    if roles[-1] in glue.replies:
      chats.append(_random_texts(random, roles, is_ragged))
  return chats


def _random_roles(random: random_lib.Random, steps) -> list[str]:
  roles, after = [], ''
  for _ in range(random.randrange(1, 8)):
    after = random.choice(sorted(role for one, role in steps if one == after))
    roles.append(after)
  return roles


def _random_texts(
  random: random_lib.Random, roles: Sequence[str], is_ragged: bool
) -> tuple[chat_lib.Pair, ...]:
  chat = []
  for role in roles:
    text = ' '.join(random.choices(_WORDS, k=random.randrange(1, 9)))
    if is_ragged:
      ends = ['', ' ', '\n', '\t ']
      text = random.choice(ends) + text + random.choice(ends)
    chat.append((role, text))
  return tuple(chat)


def _differ(messages, text, written: str) -> ValueError:
  if isinstance(text, rendering.Refusal):
    return ValueError(
      f'chat_template: does not render a chat of {len(messages)} messages:'
      f' {text.reason}; give another template (--template=FILE).'
    )
  same = _same(text, written)
  return ValueError(
    f'chat_template: differs from its pieces at character {same} of a chat of'
    f' {len(messages)} messages, {text[same : same + 20]!r} instead of'
    f' {written[same : same + 20]!r}; give another template (--template=FILE).'
  )


def _same(a: str, b: str) -> int:
  """Returns how many characters two texts begin with alike."""
  pairs = enumerate(zip(a, b))
  return next((n for n, (x, y) in pairs if x != y), min(len(a), len(b)))


def _adapt(native: Glue, moves_system: bool, keeps_thoughts: bool) -> Glue:
  """Returns glue for all chats; the template's own where it has some."""
  steps, replies = dict(native.steps), dict(native.replies)
  notes = [*native.adaptations]
  if moves_system:
    notes.append('a system text stands before the first user text')
  first, reply = steps['', 'user'][0], replies['user']
  # The next turn's prompt must begin with this turn's, and its reply.
  history = steps['user', 'assistant'][0]
  begin, end = THOUGHT
  cuts_thought = not keeps_thoughts and reply.rfind(begin) > reply.rfind(end)
  keeps_opening = not (history.startswith(reply) or cuts_thought)
  if cuts_thought:
    notes.append('replies lose their reasoning in the history')
  if keeps_opening:
    rest = reply[_same(history, reply) :]
    notes.append(f'replies keep their opening in the history, {rest!r}')
  answer = reply if keeps_opening else history
  if ('', 'system') not in steps:
    notes.append('a system text opens the first user turn')
    steps['', 'system'] = (first, 'user')
  openings = {
    after: steps[after, 'user'][0]
    for after in ('', 'system', 'assistant')
    if (after, 'user') in steps
  }
  joined = {
    ('system', 'system'): (JOINT, 'system'),
    ('user', 'user'): (JOINT, 'user'),
    ('user', 'system'): (JOINT, 'user'),
    ('assistant', 'system'): (openings['assistant'], 'user'),
  }
  joined = {
    key: value
    for key, value in joined.items()
    if key not in steps and key[0] in ('user', *openings)
  }
  if joined:
    shared = [f'{role} after {after}' for after, role in joined]
    notes.append(f'texts share a turn: {", ".join(shared)}')
    steps |= joined
  if ('', 'assistant') in steps:
    replies.setdefault('', steps['', 'assistant'][0])
  # A reply that follows no user is the template's own only where the template
  # also writes such replies in the history.
  spoken = [
    after
    for after in openings
    if (after, 'assistant') not in steps or after not in replies
  ]
  if spoken:
    notes.append(f'before a reply that follows no user, the user says {LINE!r}')
  for after in spoken:
    steps[after, 'assistant'] = (openings[after] + LINE + answer, 'assistant')
    replies[after] = openings[after] + LINE + reply
  for after, opening in replies.items():
    is_same = steps[after, 'assistant'][0].startswith(opening)
    if not (is_same or cuts_thought):
      steps[after, 'assistant'] = (opening, 'assistant')
  return Glue(steps, replies, native.strips, tuple(notes))
