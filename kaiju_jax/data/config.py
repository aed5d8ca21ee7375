"""Where training rows come from."""

import dataclasses


@dataclasses.dataclass
class DataConfig:
  """Rows of packed documents.

  Attributes:
    task: a row of `runs/tasks.py`: 'text' (files of text), 'properties' (the
      same with a label per byte, for the token head), 'needle' (the
      synthetic retrieval task) or 'needle_text' (a magic number hidden in
      text).
    path: a file, folder or glob of text; '' for the prose and code that the
      running Python installation carries.
    tokenizer: path of a Hugging Face `tokenizer.json`; '' for bytes.
    length: L, tokens per row, at least 2: a row's first token is not predicted.
    batch: B, rows per microbatch.
    microbatches: microbatches whose gradients make one step.
    held_out: fraction of the documents that is kept for evaluation.
    evaluated_rows: how many rows of held-out text one evaluation reads.
  """

  task: str = 'text'
  path: str = ''
  tokenizer: str = ''
  length: int = 512
  batch: int = 8
  microbatches: int = 1
  held_out: float = 0.05
  evaluated_rows: int = 128


def check(config: DataConfig) -> None:
  """Refuses settings that no rows can be made with, before any file is read.

  Raises:
    ValueError: names the field, its value and what would be right.
  """
  for name, least in (
    ('length', 2),
    ('batch', 1),
    ('microbatches', 1),
    ('evaluated_rows', 1),
  ):
    if getattr(config, name) < least:
      raise ValueError(
        f'data.{name}={getattr(config, name)}: must be at least {least}.'
      )
  if not 0 <= config.held_out < 1:
    raise ValueError(
      f'data.held_out={config.held_out}: must be a fraction, 0 ≤ … < 1.'
    )
