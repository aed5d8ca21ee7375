"""What does a message cost, and which of source 003's figures agree?

    python -m experiments.economics --book=source [--tornado]
        [--set=hit_rate=0.95,slo=1.0] [--markdown] [--json=PATH]
        [--figure=PATH]

Prints a book's inputs with their labels, source 003's calculator beside ours, a
message's cost by part, margins by the share of users who pay, other models, and
with --tornado what each input does. The books are `source` (source 003's fleet,
and all that it says of it: each cell is recomputed from the others and flagged
where they disagree), `post_2024` and `ours`. Imports no jax: the ceilings are
arithmetic on chip files, which no device has confirmed.
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
_MARKDOWN = flags.DEFINE_bool('markdown', False, 'Print tables in Markdown.')
_JSON = flags.DEFINE_string('json', None, 'Where cells and tables go as JSON.')
_FIGURE = flags.DEFINE_string('figure', None, 'Where the tornado goes as PNG.')


def main(argv: Sequence[str]) -> None:
  command.check(argv)
  from kaiju_jax.experiments.studies import economics
  from kaiju_jax.fleet import book as book_lib
  from kaiju_jax.fleet import economics as economics_lib
  from kaiju_jax.fleet import sensitivity
  from kaiju_jax.reporting import figures
  from kaiju_jax.reporting import report
  from kaiju_jax.storage import files

  for flag in (_JSON, _FIGURE):
    if flag.value:
      addresses.refuse(flag.value, f'--{flag.name}={flag.value}')
  if _FIGURE.value:
    figures.require_figures()
  book = economics.load(_BOOK.value, _SET.value)
  parts = [
    economics.show_book(book, economics.load('ours')),
    economics.show_calculator(book),
  ]
  if _BOOK.value == 'source':
    parts += economics.show_claims(book)
  parts += economics.show_cost(book)
  parts.append(economics.show_models(book))
  if _TORNADO.value or _FIGURE.value:
    bars = sensitivity.tornado(book)
    parts.append(economics.show_tornado(bars))
  written = []
  if _FIGURE.value:
    middle = 1000 * economics_lib.cost(book_lib.inputs(book)).total
    economics.draw_tornado(bars, middle, _FIGURE.value)
    written.append(_FIGURE.value)
  if _JSON.value:
    path = pathlib.Path(_JSON.value)
    files.write_json(path, economics.as_json(parts, book))
    written.append(path)
  report.show(economics.render(parts, _MARKDOWN.value), written)


if __name__ == '__main__':
  command.run(main)
