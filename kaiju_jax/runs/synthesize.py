"""From passages and a trained model to a file of question-answer trees.

    synthesize.synthesize(loaded, 'my/texts', 'qa.jsonl')

writes qa.jsonl, one tree per passage of which a variation was kept, and beside
it qa.jsonl.journal, every variation with its verdict. The same call goes on
where it was stopped.
"""

import collections
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Sequence
import dataclasses
import os
import pathlib
from typing import NamedTuple

from kaiju_jax.data import documents as documents_lib
from kaiju_jax.data import leaks
from kaiju_jax.data import tokenizer as tokenizer_lib
from kaiju_jax.decoding.engine import generator as generator_lib
from kaiju_jax.runs import load
from kaiju_jax.storage import addresses
from kaiju_jax.storage import files
from kaiju_jax.synthesis import filters
from kaiju_jax.synthesis import journal as journal_lib
from kaiju_jax.synthesis import settings as settings_lib
from kaiju_jax.synthesis import trees
from kaiju_jax.synthesis import variations as variations_lib


class Report(NamedTuple):
  """What a synthesis came to.

  Attributes:
    passages: how many were asked about.
    unfit: names of those that are trees, or longer than the model can read.
    verdicts: {verdict: variations}.
    trees: passages that kept at least one variation.
  """

  passages: int
  unfit: tuple[str, ...]
  verdicts: dict[str, int]
  trees: int


def synthesize(
  loaded: load.Loaded,
  documents: str,
  out: str | os.PathLike,
  settings: settings_lib.Settings | None = None,
  rows: int = 16,
  evaluation: str = '',
  noted: Callable[[int, int], None] = lambda done, total: None,
) -> Report:
  """Draws variations of every passage, filters them, and writes the trees.

  Args:
    loaded: the generator, from `load.from_workdir` or `load.from_export`.
    documents: a file, folder or glob of text, as `data.path`; each document
      is a passage.
    out: the .jsonl to write. It must not exist.
    settings: how variations are drawn and filtered; by default `Settings()`.
    rows: sequences that are generated at once; it changes no text.
    evaluation: a file, folder or glob of evaluation text, each document an
      item; a question that stands in one is not kept. '' for none.
    noted: called with the passages that are done, and how many there are.

  Raises:
    OSError: text, journal or output that cannot be read or written.
    ValueError: bad settings, no passage that the model can read, a journal of
      another synthesis, or no variation that was kept.
    KeyboardInterrupt: at Ctrl-C. What is done is in the journal.
  """
  settings = settings or settings_lib.Settings()
  out = pathlib.Path(_free(out))
  tokenizer = tokenizer_lib.load(loaded.tokenizer, loaded.config.vocab_size)
  items = _texts(evaluation) if evaluation else []
  passages, unfit, length = _passages(loaded, documents, tokenizer, settings)
  files.make_folder(out.parent)
  head = {
    'generator': loaded.origin,
    'documents': documents,
    'settings': {
      name: str(value) if isinstance(value, float) else value
      for name, value in dataclasses.asdict(settings).items()
    },
  }
  path = out.with_name(f'{out.name}.journal')
  with journal_lib.Journal(path, head) as journal:
    left = [one for one in passages if one.name not in journal.judged]
    noted(len(passages) - len(left), len(passages))
    if left:
      author = _author(loaded, tokenizer, settings, rows, length)
      for group in _groups(left, max(1, rows // settings.variations)):
        for passage, drawn in zip(group, author.write(group)):
          verdicts = filters.judge(passage.text, drawn, settings)
          journal.append(passage.name, list(zip(drawn, verdicts)))
        noted(len(journal.judged), len(passages))
    judged = without_leaks(journal.judged, items)
    return _publish(out, passages, unfit, settings, judged)


def _free(out) -> str:
  addresses.refuse(str(out), f'out={str(out)!r}')
  if os.path.exists(out):
    raise ValueError(f'out={str(out)!r}: exists already; name a new file.')
  return str(out)


def _passages(loaded, documents, tokenizer, settings):
  """Returns the passages, the names of unfit ones, and a row's length."""
  passages, unfit, longest = [], [], 0
  for document in documents_lib.read(documents):
    length = variations_lib.length(
      settings, tokenizer, ''.join(document.segments)
    )
    if len(document.segments) > 1 or length > loaded.config.max_length:
      unfit.append(document.name)
      continue
    longest = max(longest, length)
    passages.append(variations_lib.Passage(document.name, document.segments[0]))
  if not passages:
    raise ValueError(
      f'documents={documents!r}: none of the {len(unfit)} documents is a'
      ' passage (not a tree) that fits, with its question and answer, in'
      f' model.max_length={loaded.config.max_length} tokens.'
    )
  return passages, tuple(unfit), longest


def _author(loaded, tokenizer, settings, rows, length):
  decoder = load.decoder(
    loaded,
    rows=rows,
    length=length,
  )
  # So that a journal goes on to the same bytes, whatever runs beside.
  generator = generator_lib.Generator(decoder, tokenizer, isolates=True)
  return variations_lib.Author(generator, tokenizer, settings)


def _groups(
  passages: Sequence[variations_lib.Passage], size: int
) -> Iterator[Sequence[variations_lib.Passage]]:
  for first in range(0, len(passages), size):
    yield passages[first : first + size]


def _texts(path: str) -> list[str]:
  return [''.join(one.segments) for one in documents_lib.read(path)]


def without_leaks(judged, items: Sequence[str]):
  """Returns the same, but `LEAKED` for questions that stand in an item."""
  kept = [
    (name, place)
    for name, own in judged.items()
    for place, (_, verdict) in enumerate(own)
    if verdict == filters.KEPT
  ]
  if not items or not kept:
    return judged
  questions = [judged[name][place][0].question for name, place in kept]
  # No run of words is too frequent in an evaluation set to count.
  leaked = leaks.find(questions, items, rare_below=len(items) + 1).find_leaked()
  judged = {name: list(own) for name, own in judged.items()}
  for (name, place), is_leaked in zip(kept, leaked):
    if is_leaked:
      judged[name][place] = judged[name][place][0], filters.LEAKED
  return judged


def _publish(out, passages, unfit, settings, judged) -> Report:
  """Writes the trees of what was kept, in the documents' order."""
  verdicts = collections.Counter()
  records = []
  for passage in passages:
    verdicts.update(verdict for _, verdict in judged[passage.name])
    kept = [one for one, v in judged[passage.name] if v == filters.KEPT]
    if kept:
      records.append(trees.record(settings.form, passage, kept))
  if not records:
    counts = ', '.join(f'{name} {n}' for name, n in verdicts.most_common())
    raise ValueError(
      f'{out}: not written, because no variation was kept ({counts}). The'
      f' journal beside it has them all.'
    )
  files.write_json_lines(out, records)
  return Report(len(passages), unfit, dict(verdicts), len(records))
