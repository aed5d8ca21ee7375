"""Reads conversations to fine-tune on, and choices between their replies.

Both are read in the model's own chat format. Held-out conversations are
evaluated with the run's objective.
"""

from collections.abc import Callable
import pathlib
import sys
from typing import Any
from typing import NamedTuple

from kaiju_jax.data import config as data_config
from kaiju_jax.tasks import texts as texts_lib
from kaiju_jax.training import experiment as experiment_lib


class Read(NamedTuple):
  """Conversations of `data.path` as rows."""

  rows: Any  # A `loader.RowSource`, the training rows.
  # The held-out rows, always in one order; None where nothing is held out.
  unseen: Any
  text: dict[str, Any]  # {'': `same_text.describe`}.


def check(experiment: experiment_lib.Experiment) -> None:
  """Refuses files that are missing, or a tokenizer that has no chat format.

  Raises:
    OSError, ValueError: names the field, its value and what would be right.
  """
  from kaiju_jax.data import documents

  data = experiment.data
  if not data.path:
    raise ValueError(
      f"data.path='': must name .jsonl files of conversations for"
      f' data.task={data.task!r}.'
    )
  documents.files(data.path)
  if data.end_weight < 0:
    raise ValueError(f'data.end_weight={data.end_weight}: must be at least 0.')
  format_of(experiment)


def check_choices(experiment: experiment_lib.Experiment) -> None:
  """Refuses what `check` does, and a reference of another tokenizer.

  Raises:
    OSError, ValueError: names the field, its value and what would be right.
  """
  from kaiju_jax.data import choices
  from kaiju_jax.data import tokenizer

  check(experiment)
  data = experiment.data
  needs = experiment.objective.preference.loss != 'options'
  if needs != bool(data.reference):
    expected = (
      'name the file that experiments.align --reference writes'
      if needs
      else "be ''"
    )
    raise ValueError(
      f'data.reference={data.reference!r}: must {expected} for'
      f' objective.preference.loss={experiment.objective.preference.loss!r}.'
    )
  if needs:
    theirs = choices.read_reference(data.reference).tokenizer
    if theirs != tokenizer.hash_use(tokenizer.load(data.tokenizer)):
      raise ValueError(
        f'data.reference={data.reference!r}: is of a model with another'
        f' tokenizer than data.tokenizer={data.tokenizer!r}.'
      )


def format_of(experiment: experiment_lib.Experiment) -> Any:
  """Returns the chat format (`chat.Format`) in which the run reads messages.

  Raises:
    ImportError: a template needs jinja2.
    OSError, ValueError: the tokenizer or the template cannot be read.
  """
  from kaiju_jax.data import chat
  from kaiju_jax.data import tokenizer
  from kaiju_jax.interchange.templates import folder

  data = experiment.data
  tokens = tokenizer.load(data.tokenizer, experiment.model.vocab_size)
  if not data.chat_template:
    return chat.format_of(tokens)
  path = pathlib.Path(data.chat_template)
  found = folder.read(path, tokens) if path.exists() else None
  if found is None:
    raise ValueError(
      f'data.chat_template={data.chat_template!r}: must be a Hugging Face'
      " folder with a chat template, or '' for our own format."
    )
  return found.format


def read_fine_tuning(experiment: experiment_lib.Experiment) -> Read:
  """Returns the conversations as rows, and prints what was left out.

  Raises:
    OSError, ValueError: files that cannot be read, a line that is no
      conversation, or too few conversations.
  """
  from kaiju_jax.data import text
  from kaiju_jax.data import turns

  data, format = experiment.data, format_of(experiment)

  def encode(found):
    return turns.fine_tuning(found, format, data.length, data.end_weight)

  (training, counts), (unseen, unseen_counts) = _split(data, encode)
  _say(counts + unseen_counts)
  rows = text.Rows(training, data.length, experiment.seed)
  held_out = None
  if unseen is not None:
    held_out = text.Rows(unseen, data.length, shuffle=False)
  return Read(rows, held_out, describe(data, training, unseen))


def read_choices(experiment: experiment_lib.Experiment) -> Read:
  """Returns trees of replies as rows, and prints what was left out.

  Raises:
    OSError, ValueError: as `read_fine_tuning`; also a tree that is longer than
      a row, or a reference that lacks a conversation.
  """
  from kaiju_jax.data import choices
  from kaiju_jax.data import text
  from kaiju_jax.data import turns

  data, format = experiment.data, format_of(experiment)
  field = f'data.reference={data.reference!r}'
  held = choices.read_reference(data.reference) if data.reference else None
  parts = _split(data, lambda found: turns.choices(found, format))
  _say_choices(parts[0][2] + parts[1][2])
  rows, values = [], []
  for shuffle, (corpus, own, _) in zip((True, False), parts):
    if corpus is None:
      rows.append(None)
      continue
    found = held and choices.find_reference(held, corpus, own, field)
    values += found or []
    source = text.Rows(corpus, data.length, experiment.seed, shuffle)
    rows.append(choices.ChoiceRows(source, own, found))
  described = describe(data, parts[0][0], parts[1][0])
  counts = described['']['training']
  # A run must not go on with the numbers of another reference.
  counts['digest'] += f' {choices.hash_values(values)}'
  return Read(*rows, described)


def _split(data: data_config.DataConfig, encode: Callable[..., Any]) -> Any:
  """Returns what `encode` makes of training and of held-out conversations.

  The first of each result is a corpus, None for none.
  """
  from kaiju_jax.data import conversations
  from kaiju_jax.data import holdout

  parts = holdout.split(
    list(conversations.read(data.path)),
    data.held_out,
    f'conversations in data.path={data.path!r}',
  )
  training, unseen = map(encode, parts)
  if training[0] is None or (data.held_out and unseen[0] is None):
    raise ValueError(
      f'data.held_out={data.held_out}: of the {sum(map(len, parts))}'
      f' conversations in data.path={data.path!r},'
      f' {len(parts[0])} are for training and {len(parts[1])} held out; among'
      f' the {"held-out" if training[0] is not None else "training"} ones none'
      f' has a reply to learn from within data.length={data.length}.'
    )
  return training, unseen


def describe(data: Any, training: Any, unseen: Any) -> dict[str, Any]:
  """Returns the description of the text of `data.path`, for `Read.text`."""
  only = data_config.SourceConfig('', data.path)
  return texts_lib.describe([texts_lib.Source(only, training, unseen)])


def _say(counts: Any) -> None:
  print(
    f'{counts.conversations:,} conversations, {counts.replies:,} replies to'
    f' learn. Longer than a row: {counts.cut:,} lost their first'
    f' {counts.turns:,} messages. Left out: {counts.dropped:,}.',
    file=sys.stderr,
  )


def _say_choices(counts: Any) -> None:
  print(
    f'{counts.conversations:,} conversations with a choice,'
    f' {counts.replies:,} replies. Left out: {counts.ties:,} ties,'
    f' {counts.single:,} turns of one reply, {counts.repeated:,} repeated'
    f' replies, {counts.dropped:,} conversations without a choice.',
    file=sys.stderr,
  )
