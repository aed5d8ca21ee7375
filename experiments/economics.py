"""Price a message or an incident, and check source 003's figures.

    python -m experiments.economics --book=source [--tornado] [--detect=15m]
        [--set=hit_rate=0.95,slo=1.0] [--markdown] [--json=PATH]
        [--figure=PATH]

Prints a book's inputs with their labels, source 003's calculator beside ours, a
message's cost by part, margins by the share of users who pay, other models, and
with --tornado what each input does. The books are `source` (source 003's fleet,
and all that it says of it: each cell is recomputed from the others and flagged
where they disagree), `post_2024` and `ours`.

With --detect it prices source 003's three incidents instead: the router's table
is lost, a classifier refuses harmless messages, one shard's int8 scales drift.
The source's ledger stands beside a fleet of fixed size that queues; the other
books have the latter alone. All $ of lost users are an upper bound.
"""

from collections.abc import Sequence
import pathlib

from absl import flags

from kaiju_jax.runs import command
from kaiju_jax.storage import addresses

_BOOK = flags.DEFINE_enum(
  'book', 'source', ('source', 'post_2024', 'ours'), 'Which fleet is priced.'
)
_SET = flags.DEFINE_list(
  'set', [], 'Cells with another value, such as hit_rate=0.95.'
)
_TORNADO = flags.DEFINE_bool(
  'tornado', False, 'Vary each input from its low to its high.'
)
_DETECT = flags.DEFINE_string(
  'detect',
  None,
  'Price incidents that are noticed after this time, such as 15m or 1h.',
)
_MARKDOWN = flags.DEFINE_bool('markdown', False, 'Print tables in Markdown.')
_JSON = flags.DEFINE_string('json', None, 'Where cells and tables go as JSON.')
_FIGURE = flags.DEFINE_string('figure', None, 'Where the tornado goes as PNG.')


def main(argv: Sequence[str]) -> None:
  command.check(argv)
  from kaiju_jax.experiments.studies import economics
  from kaiju_jax.fleet import book as book_lib
  from kaiju_jax.fleet import incident
  from kaiju_jax.reporting import figures
  from kaiju_jax.reporting import report
  from kaiju_jax.storage import files

  for flag in (_JSON, _FIGURE):
    if flag.value:
      addresses.refuse(flag.value, f'--{flag.name}={flag.value}')
  if _DETECT.value is not None:
    for flag in (_TORNADO, _FIGURE):
      if flag.value:
        raise ValueError(f'--{flag.name}: not with --detect.')
    detection = incident.minutes(_DETECT.value)
  if _FIGURE.value:
    figures.require_figures()
  book = book_lib.load(_BOOK.value, _SET.value)
  written = []
  if _DETECT.value is not None:
    parts = economics.show_incidents(book, detection)
  else:
    parts = economics.show_messages(book)
    if _TORNADO.value or _FIGURE.value:
      bars = book_lib.tornado(book)
      parts.append(economics.show_tornado(bars))
    if _FIGURE.value:
      economics.draw_tornado(bars, book, _FIGURE.value)
      written.append(_FIGURE.value)
  if _JSON.value:
    written.append(pathlib.Path(_JSON.value))
    files.write_json(written[-1], economics.as_json(parts, book))
  page = report.Report().add(*parts)
  page.show(written, as_markdown=_MARKDOWN.value)


if __name__ == '__main__':
  command.run(main)
