"""Reads texts and chats with labelled spans, for the token head.

A part of them is held out, and is evaluated with the run's objective.
"""

from kaiju_jax.data import config as data_config
from kaiju_jax.tasks import conversations as conversations_lib
from kaiju_jax.training import experiment as experiment_lib


def check(experiment: experiment_lib.Experiment) -> None:
  """Refuses files that are missing, and weights that there are not.

  Raises:
    OSError, ValueError: names the field, its value and what would be right.
  """
  from kaiju_jax.data import documents
  from kaiju_jax.data import spans

  data = experiment.data
  if not data.path:
    raise ValueError(
      "data.path='': must name .jsonl files of labelled texts for"
      " data.task='spans'."
    )
  documents.files(data.path)
  for name, known in (
    ('label_weights', spans.WEIGHTS),
    ('span_tokens', spans.TOKENS),
  ):
    if getattr(data, name) not in known:
      raise ValueError(
        f'data.{name}={getattr(data, name)!r}: must be one of'
        f' {", ".join(map(repr, known))}.'
      )


def read(experiment: experiment_lib.Experiment) -> conversations_lib.Read:
  """Returns the texts as rows with labels.

  Raises:
    OSError, ValueError: files that cannot be read, a line that is no labelled
      text, or a dimension without a span.
  """
  from kaiju_jax.data import holdout
  from kaiju_jax.data import spans
  from kaiju_jax.data import text
  from kaiju_jax.data import tokenizer

  data, names = experiment.data, tuple(experiment.objective.token_head.names)
  parts = holdout.split(
    list(spans.read(data.path, names)),
    data.held_out,
    f'texts in data.path={data.path!r}',
  )
  _check_parts(data, names, parts)
  has_chats = any(one.messages[0].role for part in parts for one in part)
  format = conversations_lib.format_of(experiment) if has_chats else None
  tokens = tokenizer.load(data.tokenizer, experiment.model.vocab_size)
  training, unseen = (
    spans.corpus(part, names, tokens, format, data.length) for part in parts
  )
  weight_3C = spans.weigh(training.labels, data.label_weights, data.span_tokens)
  rows = text.Rows(
    training,
    data.length,
    experiment.seed,
    beside=spans.Beside(training.labels, weight_3C),
  )
  held_out = None
  if unseen is not None:
    held_out = text.Rows(
      unseen,
      data.length,
      shuffle=False,
      beside=spans.Beside(unseen.labels, weight_3C),
    )
  described = conversations_lib.describe(data, training, unseen)
  return conversations_lib.Read(rows, held_out, described)


def _check_parts(data: data_config.DataConfig, names, parts) -> None:
  from kaiju_jax.data import spans

  known = spans.list_dimensions(parts[0])
  missing = [name for name in names if name not in known]
  if missing:
    raise ValueError(
      f'data.held_out={data.held_out}: {len(parts[0])} texts in'
      f' data.path={data.path!r} are for training and {len(parts[1])} held out;'
      f' no span of {missing[0]!r} is for training.'
    )
