"""Where training rows come from."""

import dataclasses


@dataclasses.dataclass
class DataConfig:
  """Rows of packed documents.

  Attributes:
    task: 'text' (files of text), 'needle' (the synthetic retrieval task) or
      'needle_text' (a magic number hidden in text).
    path: a file, folder or glob of text; '' for the prose and code that the
      running Python installation carries.
    tokenizer: path of a Hugging Face `tokenizer.json`; '' for bytes.
    length: L, tokens a row.
    batch: B, rows a microbatch.
    microbatches: microbatches whose gradients make one step.
    held_out: fraction of the documents kept for evaluation.
  """

  task: str = 'text'
  path: str = ''
  tokenizer: str = ''
  length: int = 512
  batch: int = 8
  microbatches: int = 1
  held_out: float = 0.05
