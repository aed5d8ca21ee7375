"""Draws chats that reach every place of a template's glue."""

from collections.abc import Sequence
import itertools
import random as random_lib

from kaiju_jax.data import chat as chat_lib
from kaiju_jax.interchange.templates import steps as steps_lib

Messages = tuple[chat_lib.Pair, ...]
# What texts are drawn from: words, texts with spaces at their ends, words and
# nothing, and texts that templates may take for something else.
PLAIN, RAGGED, EMPTY, ODD = 'plain', 'ragged', 'empty', 'odd'
_LONGEST = 40  # Messages of the longest chats.
_WORDS = (
  *('tea', '"rain"', "it's", '{{name}}', '<b>bold</b>', '3.5', '&', 'naïve'),
  *('東京', '👍🏽', '(x)', '[y]', 'two\nlines', 'three\n\nmore', '$5'),
  *('{% if %}', 'user', 'System:', '\\n', 'e\u0301', 'a  b', 'long ' * 60),
)
_ENDS = ('', ' ', '\n', '\t ', '\n\n', '\u3000', '\xa0 ')
_ODD = ('', ' ', '\n', 'user\n', '<s>', '</s>', '<|im_end|>', '[INST]')


def find_paths(glue: steps_lib.Glue) -> dict[str, Messages]:
  """Returns the fewest messages that lead to each place.

  A path of the template's own steps has precedence. Texts are '' only where
  they must be.
  """
  replaced, paths = glue.replaced_keys(), {'': ()}
  for allows_replaced in False, True:
    waiting = list(paths)
    while waiting:
      place = waiting.pop(0)
      for (before, role), step in glue.steps.items():
        is_allowed = allows_replaced or (before, role) not in replaced
        if before != place or not is_allowed:
          continue
        for after, text in (step.place, 'x'), (step.skips_to, ''):
          if after is not None and after not in paths:
            paths[after] = (*paths[place], (role, text))
            waiting.append(after)
  return paths


def draw_chats(
  random: random_lib.Random,
  glue: steps_lib.Glue,
  count: int,
  kinds: Sequence[str] = (PLAIN, RAGGED),
  literals: Sequence[str] = (),
) -> list[Messages]:
  """Returns random chats that a reply can follow.

  Each step and each opening of a reply is in one of them at least, with texts
  of each kind.

  Args:
    random: draws them.
    glue: its steps are taken.
    count: number of chats beside those.
    kinds: of texts, those of one chat are of one kind.
    literals: further words of ODD texts.
  """
  paths = find_paths(glue)
  begun = [paths[place] for place in glue.replies if place in paths]
  begun += [(*paths[before], (role, 'x')) for before, role in glue.steps]
  chats = []
  for messages, kind in itertools.product(begun, kinds):
    if whole := _extend(random, glue, messages, len(messages)):
      chats.append(_fill(random, whole, kind, literals))
  for number in range(count):
    most = _LONGEST if number % 12 == 11 else 8
    if whole := _extend(random, glue, (), random.randrange(1, most)):
      chats.append(_fill(random, whole, random.choice(kinds), literals))
  return chats


def _extend(
  random: random_lib.Random,
  glue: steps_lib.Glue,
  messages: Messages,
  length: int,
) -> Messages:
  """Returns messages until a reply can follow; () where none can."""
  while len(messages) < 2 * _LONGEST:
    place = glue.find_place(messages)
    can_reply = place in glue.replies and len(messages) > 0
    choices = sorted(role for before, role in glue.steps if before == place)
    if can_reply and (len(messages) >= length or not choices):
      return messages
    if not choices:
      break
    messages = (*messages, (random.choice(choices), 'x'))
  return ()


def _fill(
  random: random_lib.Random,
  messages: Messages,
  kind: str,
  literals: Sequence[str],
) -> Messages:
  """Returns messages with random texts; what is empty stays so."""
  return tuple(
    (role, text and _text(random, kind, literals)) for role, text in messages
  )


def _text(random: random_lib.Random, kind: str, literals: Sequence[str]) -> str:
  words = random.choices(_WORDS, k=random.randrange(1, 9))
  if kind == EMPTY and random.random() < 0.5:
    return ''
  if kind == ODD:
    odd = [*_ODD, *literals]
    if random.random() < 0.3:
      return random.choice(odd)
    words[random.randrange(len(words))] = random.choice(odd)
  text = ' '.join(words).strip()
  if kind == RAGGED:
    text = random.choice(_ENDS) + text + random.choice(_ENDS)
  return text
