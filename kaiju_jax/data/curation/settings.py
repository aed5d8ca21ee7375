"""The settings of mixes and selections; imports no numpy."""

from collections.abc import Sequence
import dataclasses


@dataclasses.dataclass(frozen=True, kw_only=True)
class MixSettings:
  """The settings of a mix."""

  # File, folder or glob of text that the mix should resemble.
  target: str
  # (name, path) of each source.
  sources: Sequence[tuple[str, str]]
  # What texts are compared by.
  embedder: str = 'ngrams'
  # em, least_squares, or proportional for all text as it is; by default em for
  # ngrams, and least_squares for other embedders.
  method: str = ''
  # tokenizer.json that tokens are counted with; or bytes.
  tokenizer: str = ''
  # Tokens of the run; 0 for not known, which bounds no weight.
  tokens: int = 0
  # How often a source may be read, at most.
  epochs: float = 4.0
  # Resamples of the documents for the intervals.
  resamples: int = 200
  # Seed of the resamples.
  seed: int = 0
  # (name, path) of texts whose held-out loss training only reports: sources of
  # weight 0. The target may be one.
  measured: Sequence[tuple[str, str]] = ()
  # mix.json over the same sources, for the stage of data.anneal_at.
  anneal: str = ''


@dataclasses.dataclass(frozen=True, kw_only=True)
class SelectionSettings:
  """The settings of a selection."""

  # File, folder or glob of text to resemble.
  target: str
  # File, folder or glob of the documents to choose from.
  source: str
  # How many documents are chosen.
  count: int
  # ngrams, lsa, npy:FILE, model:WORKDIR or t5:FOLDER; see experiments.mix.
  embedder: str = 'ngrams'
  # importance or cosine; by default importance for ngrams, and cosine for other
  # embedders.
  method: str = ''
  # Factor of the Gumbel noise.
  noise: float = 1.0
  # Seed of the noise.
  seed: int = 0
