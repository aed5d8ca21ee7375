"""What does an incident cost, by the minutes until it is noticed?

    python -m experiments.incident --book=source [--detect=15m] [--markdown]
        [--set=message_rate=1000] [--json=PATH]

Prices source 003's three incidents: the router's table is lost, a classifier
refuses harmless messages, one shard's int8 scales drift. With --book=source its
ledger stands beside a fleet of fixed size that queues; the other books have the
latter alone. All $ of lost users are an upper bound (`fleet/incident.py`).
"""

from collections.abc import Sequence
import pathlib

from absl import flags

from kaiju_jax.runs import command
from kaiju_jax.storage import addresses

_BOOK = flags.DEFINE_enum(
  'book', 'source', ('source', 'post_2024', 'ours'), 'Whose fleet it is.'
)
_DETECT = flags.DEFINE_string(
  'detect', '15m', 'Time until the incident is noticed, such as 15m or 1h.'
)
_SET = flags.DEFINE_list(
  'set', [], 'Cells with another value, such as message_rate=1000.'
)
_MARKDOWN = flags.DEFINE_bool('markdown', False, 'Print tables in Markdown.')
_JSON = flags.DEFINE_string('json', None, 'Where the figures go as JSON.')


def main(argv: Sequence[str]) -> None:
  command.check(argv)
  from kaiju_jax.experiments.studies import economics
  from kaiju_jax.fleet import incident
  from kaiju_jax.reporting import report
  from kaiju_jax.storage import files

  if _JSON.value:
    addresses.refuse(_JSON.value, f'--json={_JSON.value}')
  detection = incident.minutes(_DETECT.value)
  book = economics.load(_BOOK.value, _SET.value)
  parts = economics.show_incidents(book, detection)
  written = []
  if _JSON.value:
    written.append(pathlib.Path(_JSON.value))
    files.write_json(written[0], economics.as_json(parts, book))
  report.show(economics.render(parts, _MARKDOWN.value), written)


if __name__ == '__main__':
  command.run(main)
