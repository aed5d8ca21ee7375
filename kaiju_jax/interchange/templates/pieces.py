"""Makes a `chat.Format` of a template's glue: tokens instead of characters.

A run between two control tokens is encoded as a whole, as in training: the end
of the glue before a text, the text, and the beginning of the glue behind it.
The latter, the *tail*, is known before the next message only if all glue
behind the place begins with it. Otherwise it is encoded by itself.
"""

from collections.abc import Sequence
import hashlib
import random as random_lib
import re
from typing import NamedTuple

import numpy as np

from kaiju_jax.data import chat
from kaiju_jax.data import tokenizer as tokenizer_lib
from kaiju_jax.interchange.templates import controls as controls_lib
from kaiju_jax.interchange.templates import glue as glue_lib

TRIED = 25  # Random chats of `count_differences`.
# A mark of a template that is no token, such as [INST] or <|user|>.
_MARK = re.compile(r'<<?[|/]*\w[\w|/ ]*>>?|\[/?[A-Z_]+\]')


class _Cut(NamedTuple):
  """Glue, cut at its control tokens.

  Attributes:
    tail: the run before the first one; '' without any.
    middle: from the first to the last one, control tokens and runs in turn.
    lead: the run behind the last one.
  """

  tail: str
  middle: tuple[str, ...]
  lead: str


def format_of(
  glue: glue_lib.Glue,
  controls: controls_lib.Controls,
  tokenizer: tokenizer_lib.Tokenizer,
  bos: str,
  ends: Sequence[int],
  thought: chat.Thought | None = None,
  keeps_thoughts: bool = False,
) -> chat.Format:
  """Returns the format of glue.

  Args:
    glue: the glue.
    controls: the control tokens.
    tokenizer: the tokenizer that decodes replies.
    bos: the name of the token that opens a text; '' for none.
    ends: tokens that end a reply, besides the one that the template writes.
    thought: the tokens around the reasoning of a reply; None for none.
    keeps_thoughts: whether later prompts hold it.

  Raises:
    ValueError: no token ends a reply.
  """
  head_L, glue = _take_head(glue, controls, bos)
  steps = {key: _cut(text, controls) for key, (text, _) in glue.steps.items()}
  replies = {
    after: _cut(text, controls) for after, text in glue.replies.items()
  }
  tails = {
    after: _shared_tail(
      [reply, *(one for key, one in steps.items() if key[0] == after)]
    )
    for after, reply in replies.items()
  }

  def encode(one: _Cut, after: str, *more: str) -> np.ndarray:
    rest = controls.encode_rest if after else controls.encode
    tail_L = rest(one.tail.removeprefix(tails[after]))
    if not one.middle:
      return np.concatenate([tail_L, *map(rest, more)])
    return np.concatenate([tail_L, _encode([*one.middle, *more], controls)])

  closing = steps['assistant', 'user'].middle[:1]
  ends = [*(controls.tokens[one] for one in closing), *ends]
  if not ends:
    raise ValueError(
      'generation_config.json: eos_token_id: no token ends a reply; name one.'
    )
  written = [
    part for one in (*steps.values(), *replies.values()) for part in one.middle
  ]
  special = {controls.tokens[one] for one in written if one in controls.special}
  return chat.Format(
    tokenizer=tokenizer,
    name='template',
    stop_tokens=tuple(dict.fromkeys([*ends, *sorted(special)])),
    head_L=head_L,
    steps={
      key: chat.Step(
        encode(one, key[0]),
        one.lead,
        glue.steps[key][1],
        controls.encode if one.middle or not key[0] else controls.encode_rest,
      )
      for key, one in steps.items()
    },
    behind={
      after: chat.Behind(tail, np.empty(0, np.int32))
      for after, tail in tails.items()
    },
    replies={
      after: encode(one, after, one.lead) for after, one in replies.items()
    },
    structure=np.array(sorted(controls.tokens.values()), np.int32),
    clean=_cleaner(glue, controls),
    digest=_digest(glue, head_L),
    thought=thought,
    keeps_thoughts=keeps_thoughts,
  )


def count_differences(
  format: chat.Format, glue: glue_lib.Glue, controls: controls_lib.Controls
) -> int:
  """Returns how many of TRIED random chats `transformers` encodes otherwise."""
  random = random_lib.Random(1)
  count = 0
  for messages in glue_lib.draw_chats(random, glue, TRIED):
    ours_L = format.prompt(messages)
    theirs_L = controls.encode_whole(glue.write(messages))
    count += ours_L[-len(theirs_L) :].tolist() != theirs_L.tolist()
  return count


def _take_head(
  glue: glue_lib.Glue, controls: controls_lib.Controls, bos: str
) -> tuple[np.ndarray, glue_lib.Glue]:
  """Returns the token that opens all chats, and the glue without it.

  If the template does not write it, the tokenizer may.
  """
  firsts = [text for key, (text, _) in glue.steps.items() if not key[0]]
  firsts.append(glue.replies[''])
  if not bos or not all(text.startswith(bos) for text in firsts):
    head = [one for one in controls.opening if one == controls.tokens.get(bos)]
    return np.array(head, np.int32), glue
  steps = {
    key: (text if key[0] else text.removeprefix(bos), place)
    for key, (text, place) in glue.steps.items()
  }
  replies = {**glue.replies, '': glue.replies[''].removeprefix(bos)}
  head_L = np.array([controls.tokens[bos]], np.int32)
  return head_L, glue._replace(steps=steps, replies=replies)


def _cut(text: str, controls: controls_lib.Controls) -> _Cut:
  tail, *middle = controls.split(text)
  if not middle:
    return _Cut('', (), tail)
  return _Cut(tail, tuple(middle[:-1]), middle[-1])


def _shared_tail(some: list[_Cut]) -> str:
  """Returns the tail that all have; '' if they differ."""
  tails = {one.tail for one in some if one.middle}
  is_shared = len(tails) == 1 and all(one.middle for one in some)
  return tails.pop() if is_shared else ''


def _encode(parts: list[str], controls: controls_lib.Controls) -> np.ndarray:
  """Returns the tokens of control tokens and runs."""
  tokens = [np.empty(0, np.int32)]
  for one in parts:
    if one in controls.tokens:
      tokens.append(np.array([controls.tokens[one]], np.int32))
    else:
      tokens.append(controls.encode(one))
  return np.concatenate(tokens)


def _cleaner(glue: glue_lib.Glue, controls: controls_lib.Controls):
  """Returns a function that cleans a text of a role: `chat.Format.clean`.

  It strips what the template strips, and puts a space into what looks like one
  of the template's marks, which are plain text to the tokenizer.
  """
  texts = [*(text for text, _ in glue.steps.values()), *glue.replies.values()]
  runs = {one for text in texts for one in controls.split(text)}
  marks = {
    mark for run in runs - set(controls.tokens) for mark in _MARK.findall(run)
  }
  found = re.compile('|'.join(map(re.escape, sorted(marks))) or r'(?!)')

  def clean(role: str, text: str) -> str:
    text = glue.clean(role, text)
    return found.sub(lambda one: f'{one[0][0]} {one[0][1:]}', text)

  return clean


def _digest(glue: glue_lib.Glue, head_L: np.ndarray) -> str:
  sums = hashlib.blake2b(repr((glue, head_L.tolist())).encode(), digest_size=16)
  return sums.hexdigest()
