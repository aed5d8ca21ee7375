"""Reads conversations to fine-tune on, and choices between their replies.

Both are read in the model's own chat format. Held-out conversations are
evaluated with the run's objective.
"""

import pathlib
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
  from kaiju_jax.data.store import corpora

  data = experiment.data
  if not data.path:
    raise ValueError(
      f"data.path='': must name .jsonl files of conversations for"
      f' data.task={data.task!r}.'
    )
  if data.end_weight < 0:
    raise ValueError(f'data.end_weight={data.end_weight}: must be at least 0.')
  corpora.check(data, encoder_of(data, experiment.model.vocab_size))


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
  return _format_of(experiment.data, experiment.model.vocab_size)


def encoder_of(
  data: data_config.DataConfig, vocab_size: int | None = None
) -> Any:
  """Returns what makes corpora for `data.task`, an `encoders.Encoder`.

  Raises:
    ImportError, OSError, ValueError: see `format_of`.
  """
  from kaiju_jax.data.store import encoders

  if data.task == 'conversations':
    return encoders.fine_tuning(data, _format_of(data, vocab_size))
  if data.task == 'choices':
    return encoders.choices(_format_of(data, vocab_size))
  return encoders.text_of(data, vocab_size)


def _format_of(data: data_config.DataConfig, vocab_size: int | None) -> Any:
  from kaiju_jax.data import chat
  from kaiju_jax.data import tokenizer
  from kaiju_jax.interchange.templates import folder

  tokens = tokenizer.load(data.tokenizer, vocab_size)
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

  data = experiment.data
  training, unseen = _load(experiment)
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

  data = experiment.data
  field = f'data.reference={data.reference!r}'
  held = choices.read_reference(data.reference) if data.reference else None
  parts = _load(experiment)
  rows, values = [], []
  for shuffle, corpus in zip((True, False), parts):
    if corpus is None:
      rows.append(None)
      continue
    found = held and choices.find_reference(held, corpus, field)
    values += found or []
    source = text.Rows(corpus, data.length, experiment.seed, shuffle)
    rows.append(choices.ChoiceRows(source, corpus.choices, found))
  described = describe(data, *parts)
  counts = described['']['training']
  # A run must not go on with the numbers of another reference.
  counts['digest'] += f' {choices.hash_values(values)}'
  return Read(*rows, described)


def _load(experiment: experiment_lib.Experiment) -> tuple[Any, Any]:
  """Returns the training and the held-out corpus."""
  vocab_size = experiment.model.vocab_size
  return texts_lib.load(experiment.data, encoder_of, vocab_size)


def describe(data: Any, training: Any, unseen: Any) -> dict[str, Any]:
  """Returns the description of the text of `data.path`, for `Read.text`."""
  only = data_config.SourceConfig('', data.path)
  return texts_lib.describe([texts_lib.Source(only, training, unseen)])
