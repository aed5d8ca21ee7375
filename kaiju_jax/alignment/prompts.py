"""Prompts of online rounds: conversations that wait for a reply.

read('prompts.jsonl')    lines of `data/conversations.py`, up to where the
                         last reply would begin; a line may also have
                         "facts": [values of the character's own text] and
                         "catchword": "…", which planted users look for
read('dialogues:1200')   invented characters and a user's first message,
                         whose own answer in the dialogues names no fact
"""

from collections.abc import Sequence
import hashlib
import json
from typing import Any
from typing import NamedTuple

import numpy as np

from kaiju_jax.characters.prompts import prompt
from kaiju_jax.data import conversations
from kaiju_jax.data import documents
from kaiju_jax.data import reading
from kaiju_jax.data.dialogues import personas
from kaiju_jax.data.dialogues import talk
from kaiju_jax.tasks.dialogues import rows

_DIALOGUES = 'dialogues:'
# No training row of dialogues is drawn from this seed (`rows.py`).
_SEED = 2**35


class Prompt(NamedTuple):
  """A conversation that waits for a reply."""

  name: str  # Its file and number.
  messages: tuple[tuple[str, str], ...]  # (role, text) of each message.
  # Values that the character's text states; () where unknown.
  facts: tuple[str, ...] = ()
  catchword: str = ''  # The character's favourite exclamation; '' for none.

  def with_replies(self, texts: Sequence[str]) -> conversations.Conversation:
    """Returns a tree of replies to the prompt, of which the last is kept."""
    messages = [conversations.WeightedMessage(*x) for x in self.messages]
    replies = tuple(
      conversations.Candidate(text, text == texts[-1]) for text in texts
    )
    last = conversations.WeightedMessage('assistant', texts[-1], 1.0, replies)
    return conversations.Conversation(self.name, (*messages, last))


def read(path: str) -> list[Prompt]:
  """Returns the prompts of a file, folder or glob, or of drawn dialogues.

  Raises:
    OSError, ValueError: `path` cannot be read, names no prompt, or a line is no
      conversation.
  """
  if path.startswith(_DIALOGUES):
    count = path.removeprefix(_DIALOGUES)
    if not (count.isascii() and count.isdigit() and int(count)):
      raise ValueError(
        f'--prompts={path}: must be dialogues:COUNT, such as dialogues:1200.'
      )
    return [_draw(number) for number in range(int(count))]
  found = []
  for name, file in documents.files(path, '--prompts'):
    for number, parts in enumerate(reading.parse_lines(file, _parse), 1):
      found.append(Prompt(f'{name}#{number}', *parts))
  if not found:
    raise ValueError(f'--prompts={path}: the files hold no conversation.')
  return found


def before_choice(
  name: str, messages: tuple[conversations.WeightedMessage, ...]
) -> Prompt:
  """Returns what stands before the last reply of a conversation."""
  last = max(i for i, one in enumerate(messages) if one.role == 'assistant')
  said = tuple((one.role, one.content) for one in messages[:last])
  return Prompt(name, said)


def digest(prompts: list[Prompt]) -> str:
  """Returns a hash of the prompts, in their order."""
  return hashlib.blake2b(
    json.dumps(prompts).encode(), digest_size=16
  ).hexdigest()


def _parse(record: Any) -> tuple[Any, tuple[str, ...], str]:
  """Returns the fields of a prompt but its name."""
  if isinstance(record, dict) and isinstance(record.get('messages'), list):
    last = record['messages'][-1:]
    if last and isinstance(last[0], dict) and last[0].get('role') == 'user':
      # A reply, which is not read, makes it a whole conversation.
      reply = {'role': 'assistant', 'content': '…'}
      record = {**record, 'messages': [*record['messages'], reply]}
  said = before_choice('', conversations.parse(record)).messages
  facts, catchword = record.get('facts', []), record.get('catchword', '')
  is_list = isinstance(facts, list) and all(isinstance(x, str) for x in facts)
  if not is_list or not isinstance(catchword, str):
    raise ValueError('"facts" must be a list of strings, "catchword" a string.')
  return said, tuple(facts), catchword


def _draw(number: int) -> Prompt:
  """Returns a character with a catchword, its greeting, and a message."""
  rng = np.random.default_rng((_SEED, number))
  persona = personas.draw(rng)
  while not persona.catchword:
    persona = personas.draw(rng)
  said, answer = talk.exchange(rng, persona)
  while any(value in answer for value in persona.facts.values()):
    said, answer = talk.exchange(rng, persona)
  return Prompt(
    f'dialogues#{number + 1}',
    (
      ('system', prompt.persona(rows.fields_of(persona))),
      (talk.ASSISTANT, personas.greeting(rng, persona)),
      (talk.USER, said),
    ),
    tuple(persona.facts.values()),
    persona.catchword,
  )
