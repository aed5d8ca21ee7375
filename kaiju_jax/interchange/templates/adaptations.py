"""Makes glue of all chats from the glue of those that a template renders.

Characters need more than most templates take: a second system text, lore in
the middle of a chat, a greeting before the user has spoken. And the prompt of a
turn must begin with the prompt of the turn before and its reply, or a cache
finds nothing. Each step that is not the template's own is in a `Difference`.

Our guess: what is done instead.
"""

from collections.abc import Collection

from kaiju_jax.data import chat as chat_lib
from kaiju_jax.interchange.templates import probes
from kaiju_jax.interchange.templates import steps as steps_lib

# A user's line where a template wants one and nobody has spoken.
LINE = 'Hello.'
# The marks around the reasoning of a reply.
THOUGHT = ('<think>', '</think>')
# Between texts that share a turn.
JOINT = '\n\n'
# The place behind a system text that has opened a user's turn.
_TOLD = 'told'


class _Table:
  """Glue that is completed step by step."""

  def __init__(self, native: steps_lib.Glue):
    self.steps = dict(native.steps)
    self.replies = dict(native.replies)
    self._native = native
    self._notes: dict[str, list[steps_lib.Key]] = {}

  def set(self, key: steps_lib.Key, text: str, place: str, note: str) -> None:
    """Sets a step; '' for no note, where the step before it has one."""
    usual = {
      'user': ('', 'user'),
      'assistant': ('user', 'assistant'),
      'system': ('', 'system')
      if ('', 'system') in self.steps
      else ('', 'user'),
    }
    strips = self.steps[usual[key[1]]].strips
    self.steps[key] = steps_lib.Step(text, place, strips)
    self._note(key, note)

  def set_reply(self, place: str, text: str, note: str) -> None:
    """Sets the opening of a reply."""
    self.replies[place] = text
    self._note((place, steps_lib.REPLY), note)

  def follow(self, place: str, other: str, note: str) -> None:
    """Makes a place go on as another one, where it has no step of its own."""
    for role in chat_lib.ROLES:
      if (place, role) not in self.steps:
        self.steps[place, role] = self.steps[other, role]
        self._note((place, role), note)
    if place not in self.replies:
      self.set_reply(place, self.replies[other], note)

  def _note(self, key: steps_lib.Key, note: str) -> None:
    if note:
      self._notes.setdefault(note, []).append(key)

  def finish(self, *notes: str) -> steps_lib.Glue:
    """Returns the glue, with further notes about no step."""
    found = [
      # What holds for a role's texts holds at all places.
      one._replace(
        keys=tuple(
          key for key in self.steps if key[1] in {role for _, role in one.keys}
        )
      )
      for one in self._native.differences
    ]
    found += [steps_lib.Difference(one, ()) for one in notes]
    found += [
      steps_lib.Difference(note, tuple(dict.fromkeys(keys)))
      for note, keys in self._notes.items()
    ]
    return self._native._replace(
      steps=self.steps, replies=self.replies, differences=tuple(found)
    )


def adapt(
  native: steps_lib.Glue, keeps_thoughts: bool, special: Collection[str] = ()
) -> steps_lib.Glue:
  """Returns glue of all chats; the template's own where it has some.

  Args:
    native: the glue that holds for the template.
    keeps_thoughts: whether the history holds the reasoning of replies.
    special: the special tokens, which no reply holds.
  """
  table = _Table(native)
  reply = native.replies['user']
  history = native.steps['user', 'assistant'].text
  begin, end = THOUGHT
  cuts_thought = not keeps_thoughts and reply.rfind(begin) > reply.rfind(end)
  told = _TOLD if ('user', 'user') in native.steps else 'user'
  _share_turns(table, told)
  is_kept = history.startswith(reply) or cuts_thought
  _speak_first(table, history if is_kept else reply)
  places = {step.place for step in table.steps.values()}
  if _TOLD in places:
    table.set((_TOLD, 'user'), JOINT, 'user', '')
    table.set((_TOLD, 'system'), JOINT, _TOLD, '')
    table.follow(_TOLD, 'user', '')
  if (probes.SKIPPED, 'user') in table.steps:
    note = 'a system text behind an empty one opens the chat'
    table.follow(probes.SKIPPED, '', note)
  if probes.MOVED in places:
    note = 'a system text stays before the first user text'
    table.follow(probes.MOVED, 'user', note)
  if not cuts_thought:
    _keep_openings(table)
  _complete_openings(table, special)
  lost = 'replies lose their reasoning in the history'
  return table.finish(*([lost] if cuts_thought else []))


def _share_turns(table: _Table, told: str) -> None:
  """Adds steps to texts that are written into another's turn.

  Args:
    table: gets the steps.
    told: the place behind a system text that has opened a user's turn.
  """
  steps = table.steps
  joined = {
    ('system', 'system'): (JOINT, 'system'),
    ('user', 'user'): (JOINT, 'user'),
    ('user', 'system'): (JOINT, 'user'),
    ('assistant', 'system'): (steps['assistant', 'user'].text, told),
  }
  if ('', 'system') not in steps:
    note = 'a system text opens the first user turn'
    table.set(('', 'system'), steps['', 'user'].text, told, note)
    del joined['system', 'system']
  joined = {key: value for key, value in joined.items() if key not in steps}
  shared = ', '.join(f'{role} after {after}' for after, role in joined)
  for key, (text, place) in joined.items():
    table.set(key, text, place, f'texts share a turn: {shared}')


def _speak_first(table: _Table, answer: str) -> None:
  """Adds a user's line before replies that follow no user.

  Such a reply is the template's own only where the template also writes it in
  the history.

  Args:
    table: gets the steps.
    answer: the text between a user's and an assistant's.
  """
  steps, replies = table.steps, table.replies
  if ('', 'assistant') in steps:
    # A chat without messages is none.
    replies.setdefault('', steps['', 'assistant'].text)
  for after in '', 'system', 'assistant':
    if (after, 'user') not in steps or (
      (after, 'assistant') in steps and after in replies
    ):
      continue
    note = f'before a reply that follows no user, the user says {LINE!r}'
    opening = steps[after, 'user'].text + LINE
    table.set((after, 'assistant'), opening + answer, 'assistant', note)
    table.set_reply(after, opening + replies['user'], note)


def _keep_openings(table: _Table) -> None:
  """Lets replies keep in the history what opened them."""
  for after, opening in table.replies.items():
    written = table.steps[after, 'assistant'].text
    if not written.startswith(opening):
      rest = opening[steps_lib.count_same(written, opening) :]
      whose = 'replies' if after == 'user' else 'replies that follow no user'
      note = f'{whose} keep their opening in the history, {rest!r}'
      table.set((after, 'assistant'), opening, 'assistant', note)


def _complete_openings(table: _Table, special: Collection[str]) -> None:
  """Lets openings have the special tokens before a reply in the history."""
  for after, opening in [*table.replies.items()]:
    written = table.steps[after, 'assistant'].text
    rest = written.removeprefix(opening)
    if rest != written and any(one in rest for one in special):
      note = f'replies are opened with {rest!r}, too'
      table.set_reply(after, written, note)
