"""Configures where training rows come from."""

from collections.abc import Sequence
import dataclasses
import math


@dataclasses.dataclass
class SourceConfig:
  """One source of a mixture (`data/mixture.py`)."""

  name: str  # The name in its curves, loss/NAME.
  path: str  # As `DataConfig.path`.
  # Its share of the tokens, relative to the other sources' weights.
  weight: float = 1.0
  # The same in the annealing stage; -1 for the same as `weight`.
  anneal: float = -1.0


@dataclasses.dataclass
class DataConfig:
  """The configuration of a run's rows."""

  # A row of `tasks/registry.py`: 'text' (files of text), 'properties' (the same
  # with a label per byte, for the token head), 'spans' (texts with labelled
  # spans, for the same), 'dialogues' (invented ones, with characters),
  # 'conversations' (to fine-tune on, `data/conversations.py`), 'choices'
  # (between their replies), 'needle' (the synthetic retrieval task),
  # 'needle_text' (a magic number hidden in text) or 'recall' (several keys,
  # chains and counts).
  task: str = 'text'
  # A file, folder or glob, or the token store made of it; '' for the prose and
  # code that the running Python installation carries.
  path: str = ''
  # Several sources instead of `path`, mixed by their weights. They are given in
  # a config's code or in a mix.json; a flag cannot hold them.
  sources: tuple[SourceConfig, ...] = ()
  # Path of a mix.json, whose weights override those of `sources`
  # (`data/mix_file.py`); '' for none.
  mix: str = ''
  # Fraction of the run's rows after which the sources' weights change to their
  # annealing weights; 1 for never.
  anneal_at: float = 1.0
  # Fraction of the run's rows over which they change, linearly; 0 for a sudden
  # change.
  anneal_over: float = 0.0
  # Rows of a mixture's block: at each block's end, every source has its share
  # of the rows so far to within one row (`data/mixture.py`).
  mix_block: int = 1024
  # Folder of a teacher's targets for this text (`experiments.teach`), which
  # objective.name='distillation' reads; '' for none.
  teacher: str = ''
  tokenizer: str = ''  # Path of a Hugging Face `tokenizer.json`; '' for bytes.
  # A Hugging Face folder whose chat template writes the messages of
  # conversations; '' for our own format (`data/chat.py`).
  chat_template: str = ''
  # Factor of the loss of the token that ends a reply; 0 is for a comparison,
  # because such a model does not learn to end its replies.
  end_weight: float = 1.0
  # How task 'spans' weighs labels: 'balanced', so that rare violations count as
  # much as frequent ones, 'root' or 'equal' (`data/spans.py`).
  label_weights: str = 'balanced'
  # Which tokens of a span task 'spans' labels: 'last', or 'all'.
  span_tokens: str = 'all'
  # File of a reference model's log-probabilities (`align --reference`) for
  # objective.name='preference'; '' for none.
  reference: str = ''
  # L, tokens per row, at least 2, because a row's first token is not predicted.
  length: int = 512
  batch: int = 8  # B, rows per microbatch.
  # A, microbatches whose gradients make one step; with `optimizer.batch` the
  # most that a step takes.
  microbatches: int = 1
  # Fraction of the documents that is kept for evaluation; of few documents, the
  # last part of each (`data/holdout.py`).
  held_out: float = 0.05
  evaluated_rows: int = 128  # Rows of held-out text that one evaluation reads.
  # The curriculum of task 'needle' or 'recall', a name in
  # `tasks/needle/curriculum.py` or `tasks/recall/rows.py`; '' for the one that
  # fits the experiment's initialization, or the first one.
  curriculum: str = ''


def check(config: DataConfig) -> None:
  """Refuses settings from which no rows can be made; reads no file.

  Raises:
    ValueError: names the field, its value and what would be right.
  """
  for name, least in (
    ('length', 2),
    ('batch', 1),
    ('microbatches', 1),
    ('evaluated_rows', 1),
    ('mix_block', 1),
  ):
    if getattr(config, name) < least:
      raise ValueError(
        f'data.{name}={getattr(config, name)}: must be at least {least}.'
      )
  if not 0 <= config.held_out < 1:
    raise ValueError(
      f'data.held_out={config.held_out}: must be a fraction, 0 ≤ … < 1.'
    )
  if config.curriculum and config.task not in ('needle', 'recall'):
    raise ValueError(
      f"data.curriculum={config.curriculum!r}: must be '' for"
      f" data.task={config.task!r}; only 'needle' and 'recall' have several."
    )
  if config.sources:
    check_sources(config.sources)
    if config.path:
      raise ValueError(
        f"data.path={config.path!r}: must be '' where data.sources are given,"
        ' which have paths of their own.'
      )
  _check_annealing(config)


def check_sources(sources: Sequence[SourceConfig]) -> None:
  """Refuses sources that cannot be mixed.

  Raises:
    ValueError: names the source, its value and what would be right.
  """
  names = set()
  for index, one in enumerate(sources):
    if not isinstance(one, SourceConfig):
      raise ValueError(
        f'data.sources[{index}]={one!r}: must be a SourceConfig. Sources cannot'
        ' be given by flag; name a mix.json with --config.data.mix.'
      )
    where = f'data.sources[{index}]'
    if not one.name or '/' in one.name:
      raise ValueError(
        f"{where}.name={one.name!r}: must be a name, without '/'."
      )
    if one.name in names:
      raise ValueError(
        f'{where}.name={one.name!r}: is the name of two sources.'
      )
    names.add(one.name)
    if not 0 <= one.weight < math.inf:
      raise ValueError(
        f'{where} ({one.name}).weight={one.weight}: must be finite, at least 0.'
      )
    if one.anneal != -1 and not 0 <= one.anneal < math.inf:
      raise ValueError(
        f'{where} ({one.name}).anneal={one.anneal}: must be finite, at least 0,'
        ' or -1 for the same as its weight.'
      )
  for field, weights in (
    ('weight', [one.weight for one in sources]),
    ('anneal', annealing_weights(sources)),
  ):
    if not sum(weights):
      raise ValueError(
        f'data.sources: {field} is 0 for all of {", ".join(sorted(names))}; at'
        ' least one must be positive.'
      )


def annealing_weights(sources: Sequence[SourceConfig]) -> list[float]:
  """Returns the sources' weights in the annealing stage."""
  return [one.weight if one.anneal == -1 else one.anneal for one in sources]


def _check_annealing(config: DataConfig) -> None:
  for name in ('anneal_at', 'anneal_over'):
    value = getattr(config, name)
    if not 0 <= value <= 1:
      raise ValueError(f'data.{name}={value}: must lie in 0…1.')
  if config.anneal_at == 1:
    return
  if config.anneal_at + config.anneal_over > 1:
    raise ValueError(
      f'data.anneal_at={config.anneal_at} and'
      f' data.anneal_over={config.anneal_over} are fractions of one run:'
      ' together at most 1.'
    )
  # A mix.json may bring the annealing weights, so that it is resolved first.
  if not config.mix and all(one.anneal == -1 for one in config.sources):
    raise ValueError(
      f'data.anneal_at={config.anneal_at}: no source has an annealing weight;'
      ' give one in data.sources, or leave data.anneal_at at 1.'
    )
