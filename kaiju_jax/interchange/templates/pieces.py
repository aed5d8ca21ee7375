"""Makes a `chat.Format` of a template's glue: tokens instead of characters.

A run between two control tokens is encoded as a whole, as in training: the end
of the glue before a text, the text, and the beginning of the glue behind it.
The latter, the *tail*, is known before the next message only if all glue
behind the place begins with it. Otherwise it is encoded by itself.

What all glue behind a place begins with, the tail and the tokens that close the
message, belongs to the message before: so a reply of a conversation to train on
has its end.
"""

from collections.abc import Mapping
from collections.abc import Sequence
import functools
import hashlib
import random as random_lib
import re

import numpy as np

from kaiju_jax.data import chat
from kaiju_jax.data import tokenizer as tokenizer_lib
from kaiju_jax.interchange.templates import controls as controls_lib
from kaiju_jax.interchange.templates import steps as steps_lib
from kaiju_jax.interchange.templates import walks

TRIED = 25  # Random chats of `count_differences`.
# A mark of a template that is no token, such as [INST] or <|user|>.
_MARK = re.compile(r'<<?[|/]*\w[\w|/ ]*>>?|\[/?[A-Z_]+\]')


def format_of(
  glue: steps_lib.Glue,
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
  cut = {key: controls.split(step.text) for key, step in glue.steps.items()}
  openings = {
    place: controls.split(text) for place, text in glue.replies.items()
  }
  shared = {
    place: _share(
      [openings[place], *(one for key, one in cut.items() if key[0] == place)],
      controls.split(glue.ends[place]) if place in glue.ends else None,
    )
    for place in openings.keys() - glue.starts
  }

  def encode(place: str, parts: list[str]) -> np.ndarray:
    known = shared.get(place, [])
    if known or place in glue.starts or not parts:
      return _encode(parts[len(known) :], controls)
    # It goes on with the run of the text before.
    rest_L = controls.encode_rest(parts[0])
    return np.concatenate([rest_L, _encode(parts[1:], controls)])

  clean = _cleaner(glue, controls)
  return chat.Format(
    tokenizer=tokenizer,
    name='template',
    stop_tokens=_find_stops(cut, openings, controls, ends, head_L),
    head_L=head_L,
    steps={
      (place, role): chat.Step(
        encode(place, cut[place, role][:-1]),
        cut[place, role][-1],
        step.place,
        controls.encode
        if len(cut[place, role]) > 1 or place in glue.starts
        else controls.encode_rest,
        functools.partial(clean, step),
        step.skips_to,
      )
      for (place, role), step in glue.steps.items()
    },
    behind={
      place: chat.Behind((parts or [''])[0], _encode(parts[1:], controls))
      for place, parts in shared.items()
    },
    replies={place: encode(place, one) for place, one in openings.items()},
    structure=np.array(sorted(controls.tokens.values()), np.int32),
    digest=_digest(glue, head_L),
    thought=thought,
    keeps_thoughts=keeps_thoughts,
  )


def _find_stops(
  cut: Mapping[steps_lib.Key, list[str]],
  openings: Mapping[str, list[str]],
  controls: controls_lib.Controls,
  ends: Sequence[int],
  head_L: np.ndarray,
) -> tuple[int, ...]:
  """Returns the tokens that end a reply, the usual one first."""
  closing = cut['assistant', 'user'][1:2]
  ends = [*(controls.tokens[one] for one in closing), *ends]
  if not ends:
    raise ValueError(
      'generation_config.json: eos_token_id: no token ends a reply; name one.'
    )
  written = {part for x in (*cut.values(), *openings.values()) for part in x}
  special = sorted(controls.tokens[one] for one in written & controls.special)
  return tuple(dict.fromkeys([*ends, *special, *head_L.tolist()]))


def name_differences(
  format: chat.Format,
  glue: steps_lib.Glue,
  controls: controls_lib.Controls,
) -> list[str]:
  """Returns how random chats' tokens are not those of `transformers`, in words.

  Args:
    format: the format of the glue.
    glue: the glue.
    controls: the control tokens.

  Raises:
    ValueError: the tokens are those of another text.
  """
  head, notes, apart = format.head_L.tolist(), [], []
  kinds = walks.PLAIN, walks.RAGGED, walks.EMPTY
  chats = walks.draw_chats(random_lib.Random(1), glue, TRIED, kinds)
  for messages in chats:
    ours = format.prompt(messages).tolist()
    theirs = controls.encode_whole(glue.write(messages)).tolist()
    if head and theirs[: len(head)] != head:
      notes.append(
        f'each chat begins with {controls.decode(head)!r}, which the tokenizer'
        ' adds to texts and the template leaves out'
      )
      ours = ours[len(head) :]
    if ours == theirs:
      continue
    # Some tokenizers put a space before a text.
    texts = [''.join(controls.decode(x).split()) for x in (theirs, ours)]
    if texts[0] != texts[1]:
      raise steps_lib.differ(len(messages), *texts)
    apart.append(_show_apart(ours, theirs, controls))
  if apart:
    notes.append(
      f'{len(apart)} of {len(chats)} chats are cut into other tokens, such as'
      f' {min(apart, key=len)}'
    )
  return list(dict.fromkeys(notes))


def _show_apart(
  ours: list[int], theirs: list[int], controls: controls_lib.Controls
) -> str:
  """Returns the tokens where two encodings of a text first differ."""
  begin = steps_lib.count_same(ours, theirs)
  some, others = (
    [controls.decode([token]) for token in one[begin : begin + 3]]
    for one in (ours, theirs)
  )
  return f'{some} instead of {others}'


def _take_head(
  glue: steps_lib.Glue, controls: controls_lib.Controls, bos: str
) -> tuple[np.ndarray, steps_lib.Glue]:
  """Returns the token that opens all chats, and the glue without it.

  If the template writes it in no chat, the tokenizer may.
  """
  starts = glue.starts
  firsts = [step.text for key, step in glue.steps.items() if key[0] in starts]
  firsts += [glue.replies[place] for place in starts]
  if not bos or not all(text.startswith(bos) for text in firsts):
    is_written = bos and any(text.startswith(bos) for text in firsts)
    head = [] if is_written else controls.opening
    head = [one for one in head if one == controls.tokens.get(bos)]
    return np.array(head, np.int32), glue
  steps = {
    key: step._replace(text=step.text.removeprefix(bos))
    if key[0] in starts
    else step
    for key, step in glue.steps.items()
  }
  replies = {
    place: text.removeprefix(bos) if place in starts else text
    for place, text in glue.replies.items()
  }
  head_L = np.array([controls.tokens[bos]], np.int32)
  return head_L, glue._replace(steps=steps, replies=replies)


def _share(exits: Sequence[list[str]], end: list[str] | None) -> list[str]:
  """Returns the run and the tokens that all glue behind a place begins with.

  Args:
    exits: all glue behind the place, cut by `Controls.split`.
    end: the same behind the last message; None if it is not known. What comes
      behind the first token belongs to the message only where it does there.
  """
  if any(len(one) == 1 for one in exits):
    return []
  shared = exits[0][: steps_lib.count_same(*(one[:-1] for one in exits))]
  return shared[: max(2, steps_lib.count_same(shared, end or []))]


def _encode(parts: list[str], controls: controls_lib.Controls) -> np.ndarray:
  """Returns the tokens of control tokens and runs."""
  tokens = [np.empty(0, np.int32)]
  for one in parts:
    if one in controls.tokens:
      tokens.append(np.array([controls.tokens[one]], np.int32))
    else:
      tokens.append(controls.encode(one))
  return np.concatenate(tokens)


def _cleaner(glue: steps_lib.Glue, controls: controls_lib.Controls):
  """Returns a function that cleans a step's text: `chat.Step.clean`.

  It strips what the template strips, and puts a space into what looks like one
  of the template's marks, which are plain text to the tokenizer.
  """
  texts = [*(one.text for one in glue.steps.values()), *glue.replies.values()]
  runs = {one for text in texts for one in controls.split(text)}
  marks = {
    mark for run in runs - set(controls.tokens) for mark in _MARK.findall(run)
  }
  found = re.compile('|'.join(map(re.escape, sorted(marks))) or r'(?!)')

  def clean(step: steps_lib.Step, text: str) -> str:
    text = step.clean(text)
    return found.sub(lambda one: f'{one[0][0]} {one[0][1:]}', text)

  return clean


def _digest(glue: steps_lib.Glue, head_L: np.ndarray) -> str:
  sums = hashlib.blake2b(repr((glue, head_L.tolist())).encode(), digest_size=16)
  return sums.hexdigest()
