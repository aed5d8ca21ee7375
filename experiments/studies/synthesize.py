"""Makes synthetic questions and answers about passages with a trained model.

    synthesize.synthesize(loaded, 'my/texts', 'qa.jsonl')

This call writes qa.jsonl, with one tree per passage that kept a variation (a
question and its answer), and qa.jsonl.journal, with every variation and its
verdict. After an interruption the same call resumes.
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
from kaiju_jax.data import tokenizer as tokenizer_lib
from kaiju_jax.data.curation import leaks
from kaiju_jax.decoding.engine import generator as generator_lib
from kaiju_jax.runs import load
from kaiju_jax.runs import play
from kaiju_jax.storage import addresses
from kaiju_jax.storage import files
from kaiju_jax.synthesis import filters
from kaiju_jax.synthesis import journal as journal_lib
from kaiju_jax.synthesis import settings as settings_lib
from kaiju_jax.synthesis import variations as variations_lib


class SynthesisReport(NamedTuple):
  """The counts of a synthesis."""

  passages: int  # The number of passages.
  # Names of documents that are trees or too long for the model.
  unfit: tuple[str, ...]
  verdicts: dict[str, int]  # {verdict: number of variations}.
  trees: int  # The number of passages that kept at least one variation.

  def describe(self) -> str:
    """Returns the counts, a line each."""
    total = sum(self.verdicts.values())
    lines = [f'{self.trees} trees of {self.passages} passages.']
    lines += [
      f'  {verdict:11} {count:7} of {total} variations'
      for verdict, count in sorted(self.verdicts.items(), key=lambda x: -x[1])
    ]
    if self.unfit:
      lines.append(
        f'  {len(self.unfit)} documents are trees or too long for the model,'
        f' such as {self.unfit[0]}.'
      )
    return '\n'.join(lines)


def synthesize(
  loaded: load.Loaded,
  documents: str,
  out: str | os.PathLike[str],
  settings: settings_lib.Settings | None = None,
  rows: int = 16,
  evaluation: str = '',
  noted: Callable[[int, int], None] = lambda done, total: None,
  played: play.Player = play.SERVED,
) -> SynthesisReport:
  """Draws variations of every passage, filters them, and writes the trees.

  Args:
    loaded: the generator, from `load.from_workdir` or `load.from_export`.
    documents: a file, folder or glob of text, as in `data.path`; each document
      is a passage.
    out: the .jsonl to write. It must not exist.
    settings: the settings of drawing and filtering; by default `Settings()`.
    rows: sequences that are generated at once; their number changes no text.
    evaluation: a file, folder or glob of evaluation text, each document an
      item; a question that an item contains is not kept. '' for none.
    noted: called with the number of passages done, and of all.
    played: with the cache and the length of the generator.

  Raises:
    OSError: text, journal or output cannot be read or written.
    ValueError: wrong settings, no passage that fits the model, a journal of
      another synthesis, or no variation that was kept.
    KeyboardInterrupt: at Ctrl-C. The journal keeps the finished passages.
  """
  settings = settings or settings_lib.Settings()
  out = pathlib.Path(_free(out))
  tokenizer = tokenizer_lib.load(loaded.tokenizer, loaded.config.vocab_size)
  items = _texts(evaluation) if evaluation else []
  passages, unfit, length = _passages(
    loaded, documents, tokenizer, settings, played.length
  )
  files.make_folder(out.parent)
  head = {
    'generator': loaded.origin,
    'documents': documents,
    'settings': journal_lib.plain(dataclasses.asdict(settings)),
  }
  if not loaded.is_ours:
    arm = dataclasses.asdict(loaded.config.quantization)
    head |= {'quantization': arm, 'dtype': loaded.config.dtype}
  path = out.with_name(f'{out.name}.journal')
  with journal_lib.Journal(path, head) as journal:
    left = [one for one in passages if one.name not in journal.judged]
    noted(len(passages) - len(left), len(passages))
    if left:
      drawn_by = dataclasses.replace(played, length=length)
      author = _author(loaded, tokenizer, settings, rows, drawn_by)
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


def _passages(loaded, documents, tokenizer, settings, length):
  """Returns the passages, the names of unfit ones, and a row's length."""
  most = min(length or loaded.config.max_length, loaded.config.max_length)
  passages, unfit, longest = [], [], 0
  for document in documents_lib.read(documents):
    length = variations_lib.length(
      settings, tokenizer, ''.join(document.segments)
    )
    if len(document.segments) > 1 or length > most:
      unfit.append(document.name)
      continue
    longest = max(longest, length)
    passages.append(variations_lib.Passage(document.name, document.segments[0]))
  if not passages:
    raise ValueError(
      f'documents={documents!r}: none of the {len(unfit)} documents is a'
      ' passage (not a tree) that fits, with its question and answer, in'
      f" {most} tokens (the model's max_length, or --length)."
    )
  return passages, tuple(unfit), longest


def _author(loaded, tokenizer, settings, rows, played):
  decoder = played.decoder(loaded, tokenizer, rows)
  # A resumed journal then has the same bytes, whichever passages run together.
  generator = generator_lib.Generator(decoder, tokenizer, batch_invariant=True)
  return variations_lib.Author(generator, tokenizer, settings)


def _groups(
  passages: Sequence[variations_lib.Passage], size: int
) -> Iterator[Sequence[variations_lib.Passage]]:
  for first in range(0, len(passages), size):
    yield passages[first : first + size]


def _texts(path: str) -> list[str]:
  return [''.join(one.segments) for one in documents_lib.read(path)]


def without_leaks(judged, items: Sequence[str]):
  """Returns the verdicts, with `LEAKED` for questions that an item contains."""
  kept = [
    (name, place)
    for name, own in judged.items()
    for place, (_, verdict) in enumerate(own)
    if verdict == filters.KEPT
  ]
  if not items or not kept:
    return judged
  questions = [judged[name][place][0].question for name, place in kept]
  # Every run of words counts, however frequent in the evaluation set.
  leaked = leaks.find(questions, items, rare_below=len(items) + 1).find_leaked()
  judged = {name: list(own) for name, own in judged.items()}
  for (name, place), is_leaked in zip(kept, leaked):
    if is_leaked:
      judged[name][place] = judged[name][place][0], filters.LEAKED
  return judged


def _publish(out, passages, unfit, settings, judged) -> SynthesisReport:
  """Writes the trees of kept variations, in the documents' order."""
  verdicts = collections.Counter()
  records = []
  for passage in passages:
    verdicts.update(verdict for _, verdict in judged[passage.name])
    kept = [one for one, v in judged[passage.name] if v == filters.KEPT]
    if kept:
      records.append(variations_lib.record(settings.form, passage, kept))
  if not records:
    counts = ', '.join(f'{name} {n}' for name, n in verdicts.most_common())
    raise ValueError(
      f'{out}: not written, because no variation was kept ({counts}). The'
      f' journal beside it has them all.'
    )
  files.write_json_lines(out, records)
  return SynthesisReport(len(passages), unfit, dict(verdicts), len(records))
