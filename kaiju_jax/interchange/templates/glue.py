"""Finds out by trial which text a chat template puts between messages.

A template is a program that renders a whole chat. A cache needs more: the
prompt of a turn must begin with the prompt of the turn before and its reply.
So a template is run a few times at start, on chats whose texts are marks, and
never again. The *glue* is what stands between two marks:

    <|im_start|>user\\nMARK<|im_end|>\\n<|im_start|>assistant\\nMARK …
                      └────────── glue ─────────────────┘

A chat's text is then glue and texts in turn, where the glue depends on the
place alone, which is the role of the message before (`steps`). `find` holds
this to the template itself on random chats that reach every place. Where a
template refuses a chat that we need, moves what stands already, or does
something to a text, an *adaptation* says what is done instead. A chat that has
none is the template's own, character for character.
"""

from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Sequence
import random as random_lib

from kaiju_jax.interchange.templates import adaptations
from kaiju_jax.interchange.templates import probes
from kaiju_jax.interchange.templates import rendering
from kaiju_jax.interchange.templates import steps as steps_lib
from kaiju_jax.interchange.templates import walks

# What there must be in any chat, and in those with a system text.
_PLAIN = frozenset(
  [
    *(('', 'user'), ('user', 'assistant'), ('assistant', 'user')),
    ('user', steps_lib.REPLY),
  ]
)
_SYSTEM = frozenset(
  [('', 'system'), ('system', 'user'), (probes.MOVED, steps_lib.REPLY)]
)


def find(
  render: Callable,
  keeps_thoughts: bool = False,
  literals: Sequence[str] = (),
  special: Collection[str] = (),
) -> steps_lib.Glue:
  """Returns a template's glue, adapted so that it takes all chats.

  Args:
    render: `rendering.Renderer.render`.
    keeps_thoughts: whether the history holds the reasoning of replies.
    literals: strings that the template names and may look for in texts.
    special: the special tokens, which no reply holds.

  Raises:
    ValueError: the template does not render chats of a user and an assistant,
      or they are more than glue and texts.
  """
  native = _verify(probes.learn(render), render)
  native = probes.name_texts(native, render, literals)
  adapted = adaptations.adapt(native, keeps_thoughts, special)
  kinds = walks.PLAIN, walks.RAGGED, walks.ODD
  for differs in _compare([native, adapted], render, 60, kinds, literals):
    if differs:
      raise differs
  return adapted


def _verify(native: steps_lib.Glue, render: Callable) -> steps_lib.Glue:
  """Returns the part of the glue that holds for random chats.

  A chat in which user and assistant alternate must hold, and should behind a
  system text. Other steps and openings are left out if their chats do not hold.

  Raises:
    ValueError: a chat that must hold does not.
  """
  # Some strip a text here and not there: then no text has spaces at its ends.
  stripped = native._replace(
    steps={
      key: step._replace(strips=(steps_lib.SPACES, steps_lib.SPACES))
      for key, step in native.steps.items()
    },
    differences=(
      steps_lib.Difference(
        'texts lose the spaces at both ends',
        tuple(native.steps),
        steps_lib.RAGGED,
      ),
    ),
  )
  choices = [(one, _PLAIN) for one in (native, stripped)]
  if {('', 'system'), ('system', 'user')} <= native.steps.keys():
    choices = [(one, _PLAIN | _SYSTEM) for one, _ in choices] + choices
  found = _compare([_only(*one) for one in choices], render)
  if all(found):
    raise found[0]
  native, needed = choices[found.index(None)]
  others = [
    key
    for key in (
      *native.steps,
      *((after, steps_lib.REPLY) for after in native.replies),
    )
    if key not in needed
    and (needed >= _SYSTEM or not {'system', probes.MOVED}.intersection(key))
  ]
  tried = [_only(native, needed | {one}) for one in others]
  found = _compare(tried, render, 8)
  held = [key for key, differs in zip(others, found) if not differs]
  # Steps that hold one by one may not hold together.
  choices = [
    _only(native, needed.union(keys))
    for keys in (
      held,
      [key for key in held if key[1] != steps_lib.REPLY],
      [],
    )
  ]
  found = _compare(choices, render)
  return choices[found.index(None)]


def _only(glue: steps_lib.Glue, keys: frozenset[steps_lib.Key]):
  """Returns the glue with some of its steps and openings."""
  return glue._replace(
    steps={key: step for key, step in glue.steps.items() if key in keys},
    replies={
      after: reply
      for after, reply in glue.replies.items()
      if (after, steps_lib.REPLY) in keys
    },
  )


def _compare(
  glues: Sequence[steps_lib.Glue],
  render: Callable,
  count: int = 25,
  kinds: Sequence[str] = (walks.PLAIN, walks.RAGGED),
  literals: Sequence[str] = (),
) -> list[ValueError | None]:
  """Returns how the template differs from each glue on random chats, if so.

  Chats of which the glue itself says so are left out.

  Args:
    glues: what is compared.
    render: `rendering.Renderer.render`.
    count, kinds, literals: as `walks.draw_chats` takes them.
  """
  chats = []
  for glue in glues:
    random = random_lib.Random(0)
    drawn = walks.draw_chats(random, glue, count, kinds, literals)
    chats.append([one for one in drawn if glue.is_own(one)])
  texts = iter(render([rendering.Chat(one) for some in chats for one in some]))
  found = []
  for glue, some in zip(glues, chats):
    compared = [(chat, next(texts), glue.write(chat)) for chat in some]
    differences = (_differ(*one) for one in compared if one[1] != one[2])
    found.append(next(differences, None))
  return found


def _differ(messages, text, written: str) -> ValueError:
  if not isinstance(text, rendering.Refusal):
    return steps_lib.differ(len(messages), text, written)
  return ValueError(
    f'chat_template: does not render a chat of {len(messages)} messages:'
    f' {text.reason}; give another template (--template=FILE).'
  )
