"""Prompts and choices from exported user feedback.

Each round trains on the next lines of the export; no replies are sampled. It is
evaluated on the lines of held-out people, or if nobody is held out on all
lines, which it was trained on.
"""

from collections.abc import Sequence
import dataclasses
import hashlib
import json
import os
import pathlib
from typing import Any

from kaiju_jax.alignment import prompts
from kaiju_jax.alignment.feedback import export
from kaiju_jax.data import chat
from kaiju_jax.data import conversations
from kaiju_jax.data import reading
from kaiju_jax.data import turns

# A held-out prompt, the replies to choose from, and the index of the kept one.
HeldOutChoice = tuple[prompts.Prompt, tuple[str, ...], int]


@dataclasses.dataclass(frozen=True)
class Feedback:
  """An export's lines that hold a choice."""

  folder: str  # The export's folder.
  lines: Sequence[dict[str, Any]]  # Those to train on.
  held_out: Sequence[HeldOutChoice]  # The last choice of each held-out line.
  digest: str  # A hash of all of them.

  def check(self, format: chat.Format, length: int) -> None:
    """Refuses a line whose tree is longer than a row.

    Raises:
      ValueError: names the line, its tokens and the row's.
    """
    for number, record in enumerate(self.lines, 1):
      said = conversations.Conversation('', conversations.parse(record))
      corpus, _ = turns.choices([said], format)
      if corpus is not None and len(corpus.tokens) > length:
        raise ValueError(
          f'--user=log:{self.folder}: choice {number} has'
          f' {len(corpus.tokens):,} tokens: a row has {length:,}.'
        )


def read(folder: str | os.PathLike[str]) -> Feedback:
  """Loads the choices of an export.

  Raises:
    OSError, ValueError: the folder is no export, or has no choice.
  """
  path = pathlib.Path(folder)
  if not (path / export.MANIFEST).is_file():
    raise FileNotFoundError(
      f'--user=log:{folder}: no {export.MANIFEST}; must be a folder that'
      ' experiments.feedback wrote.'
    )
  train, unseen = (
    [
      record
      for record in reading.parse_lines(path / name, _check)
      if _find_choice(record) is not None
    ]
    for name in (export.TRAIN, export.HELD_OUT)
  )
  if not train:
    raise ValueError(
      f'--user=log:{folder}: {export.TRAIN} has no choice between different'
      ' replies.'
    )
  held = [_find_choice(record) for record in unseen or train]
  text = json.dumps([train, unseen], sort_keys=True).encode()
  digest = hashlib.blake2b(text, digest_size=16).hexdigest()
  return Feedback(str(folder), train, held, digest)


def _check(record: Any) -> dict[str, Any]:
  conversations.parse(record)
  return record


def _find_choice(record: dict[str, Any]) -> HeldOutChoice | None:
  """Returns the last choice of a line; None for none."""
  messages = conversations.parse(record)
  for index in reversed(range(len(messages))):
    kept = [x.content for x in messages[index].replies if x.is_kept]
    texts = tuple(dict.fromkeys(x.content for x in messages[index].replies))
    if len(kept) == 1 and len(texts) > 1:
      until = messages[: index + 1]
      prompt = prompts.before_choice('', until)
      return prompt, texts, texts.index(kept[0])
  return None
