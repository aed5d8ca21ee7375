"""Price a message or an incident, and check source 003's figures.

    python -m experiments.economics --book=source [--tornado] [--detect=15m]
        [--set=hit_rate=0.95,slo=1.0] [--markdown] [--json=PATH]
        [--figure=PATH]

Prints a book's inputs, source 003's calculator beside ours, a message's cost by
part, margins, other models, and with --tornado what each input does. The book
`source` is source 003's fleet: each cell is recomputed from the others, and
flagged where they disagree; the others are `post_2024` and `ours`.

With --detect it prices source 003's three incidents instead: the router's table
is lost, a classifier refuses harmless messages, one shard's int8 scales drift.
All $ of lost users are an upper bound.
"""

from collections.abc import Sequence
import dataclasses
import pathlib
from typing import Literal

from kaiju_jax.runs import command
from kaiju_jax.runs import flags


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
  # Which fleet is priced.
  book: Literal['source', 'post_2024', 'ours'] = 'source'
  # Cells with another value, such as hit_rate=0.95.
  set: tuple[str, ...] = ()
  # Vary each input from its low to its high.
  tornado: bool = False
  # Price incidents that are noticed after this time, such as 15m or 1h.
  detect: str | None = None
  # Print tables in Markdown.
  markdown: bool = False
  # Where cells and tables go as JSON.
  json: str | None = None
  # Where the tornado goes as PNG.
  figure: str | None = None


FLAGS = flags.flags_of(Settings)


def main(argv: Sequence[str]) -> None:
  settings = FLAGS.read(argv)
  from kaiju_jax.experiments.studies import economics
  from kaiju_jax.fleet import book as book_lib
  from kaiju_jax.fleet import incident
  from kaiju_jax.reporting import figures
  from kaiju_jax.reporting import report
  from kaiju_jax.storage import files

  flags.refuse_address('json', settings.json)
  flags.refuse_address('figure', settings.figure)
  if settings.detect is not None and (settings.tornado or settings.figure):
    raise ValueError('--detect: not with --tornado or --figure.')
  if settings.figure:
    figures.require_figures()
  book = book_lib.load(settings.book, settings.set)
  written = [pathlib.Path(x) for x in (settings.figure, settings.json) if x]
  if settings.detect is not None:
    detection = incident.minutes(settings.detect)
    tables = economics.show_incidents(book, detection)
  else:
    tables = economics.show_messages(book)
  if settings.tornado or settings.figure:
    bars = book_lib.tornado(book)
    tables.append(economics.show_tornado(bars))
    if settings.figure:
      economics.draw_tornado(bars, book, settings.figure)
  if settings.json:
    files.write_json(written[-1], economics.as_json(tables, book))
  report.Report().add(*tables).show(written, as_markdown=settings.markdown)


if __name__ == '__main__':
  command.run(main)
