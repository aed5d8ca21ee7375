"""Reports: what a command prints, and the page that it writes.

    page = report.Report('Recall by arm')
    page.say('Questions right, with 95 % intervals.')
    page.table([Row('int8', statistics.Share(97, 100))])  # A NamedTuple's.
    page.table(rows, ('arm', 'loss, nats'), title='Held-out loss')
    page.figure('recall.png', drawn, 'Recall by length')
    page.decide(decision)
    page.show()  # Tables for a terminal.
    page.write('runs/recall')  # report.md, recall.png and decision.json.

The same page is written as report.html, which loads no other file, and as
report.json: title, parts, decision, and what `Report.data` holds.

The columns of a table are the fields of its rows, unless the call names them. A
cell is printed by `str`; `statistics.Share`, `statistics.Estimate`, `Number`
and `Bytes` print themselves, and None is a dash. Code that makes tables for
others to show returns `Table`s, and `Report.add` takes them.

Beside `training/progress.py`, this is the only module that imports rich, and
the only one that writes tables in Markdown.
"""

from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Sequence
import dataclasses
import math
import os
import pathlib
from typing import Any
from typing import NamedTuple
from typing import Self

import rich.box
import rich.console
import rich.table

from kaiju_jax.reporting import decision as decision_lib
from kaiju_jax.reporting import figures
from kaiju_jax.reporting import web_page
from kaiju_jax.storage import files
from kaiju_jax.storage import folders

FILE, JSON, HTML = 'report.md', 'report.json', 'report.html'


class Number(float):
  """A number that prints itself in a form, as '.4f'."""

  def __new__(cls, value: float, form: str = '.4f') -> Self:
    found = super().__new__(cls, value)
    found.form = form
    return found

  def __str__(self) -> str:
    return (
      format(float(self), self.form) if math.isfinite(self) else 'not finite'
    )


def number(value: float, form: str = '.4f') -> Number | None:
  """Returns a cell with a number, a dash for NaN."""
  return None if math.isnan(value) else Number(value, form)


class Bytes(float):
  """A number of bytes; prints itself in binary units."""

  def __str__(self) -> str:
    size = self
    for unit in ('B', 'KiB', 'MiB', 'GiB'):
      if size < 1024:
        return f'{size:,.0f} B' if unit == 'B' else f'{size:.3g} {unit}'
      size /= 1024
    return f'{size:,.3g} TiB'


@dataclasses.dataclass(frozen=True)
class Table:
  """A table, for a terminal and for Markdown."""

  # Sequences of cells; or dataclasses or NamedTuples, all of one class.
  rows: Iterable[Any]
  columns: Sequence[str] = ()  # Their names; by default the fields of the rows.
  # Shown above and below it.
  title: str = ''
  caption: str = ''
  left: int = 1  # How many columns, from the left, are aligned to the left.
  # Of a terminal's table: 'boxed', 'light', or 'narrow' for many columns.
  look: str = 'boxed'
  has_total: bool = False  # Whether the last row is a total.

  def __post_init__(self) -> None:
    rows = list(self.rows)
    names = self.columns or [
      name.replace('_', ' ') for one in rows[:1] for name in _fields(one)
    ]
    rows = [
      [getattr(row, name) for name in _fields(row)]
      if dataclasses.is_dataclass(row)
      else row
      for row in rows
    ]
    object.__setattr__(self, 'rows', rows)
    object.__setattr__(self, 'columns', tuple(names))

  def cells(self) -> Iterator[list[str]]:
    """Yields the rows, as text."""
    for row in self.rows:
      yield ['–' if cell is None else str(cell) for cell in row]

  def markdown(self) -> str:
    """Returns the table in Markdown."""
    rows = ([cell.replace('|', r'\|') for cell in row] for row in self.cells())
    head = [_line(self.columns), '|' + '---|' * len(self.columns)]
    title = [f'**{self.title}**', ''] if self.title else []
    caption = ['', self.caption] if self.caption else []
    return '\n'.join((*title, *head, *map(_line, rows), *caption))


class _Figure(NamedTuple):
  """A figure of matplotlib, the name of its file and its description."""

  name: str
  drawn: Any
  text: str


class Report:
  """Paragraphs, tables and figures in order, and a decision.

  Args:
    title: the page's heading; '' for none.

  Attributes:
    parts: paragraphs, tables and figures.
    data: plain data for readers of report.json.
    decision: the decision that the page ends in; None for none.
  """

  def __init__(self, title: str = ''):
    self.title: str = title
    self.data: dict[str, Any] = {}
    self.decision: decision_lib.Decision | None = None
    self.parts: list[Any] = [f'# {title}'] if title else []

  def say(self, *lines: str) -> Self:
    """Adds a paragraph, or a heading in Markdown."""
    if lines:
      self.parts.append('\n'.join(lines))
    return self

  def table(
    self,
    rows: Iterable[Any],
    columns: Sequence[str] = (),
    title: str = '',
    **options: Any,
  ) -> Self:
    """Adds a table; see `Table`."""
    return self.add(Table(rows, columns, title, **options))

  def figure(self, name: str, drawn: Any, text: str) -> Self:
    """Adds a figure.

    Args:
      name: of the PNG file.
      drawn: see `figures.figure`.
      text: describes it to whoever cannot see it.
    """
    self.parts.append(_Figure(name, drawn, text))
    return self

  def add(self, *parts: Table | str) -> Self:
    """Adds tables and paragraphs."""
    self.parts += parts
    return self

  def decide(self, decision: decision_lib.Decision) -> Self:
    """Ends the page in a decision."""
    self.decision = decision
    return self

  def markdown(self) -> str:
    """Returns the page in Markdown, without its decision."""
    return '\n\n'.join(map(_markdown, self.parts))

  def show(
    self,
    written: Sequence[Any] = (),
    width: int | None = None,
    as_markdown: bool = False,
    has_markup: bool = True,
  ) -> None:
    """Prints the page with tables for a terminal.

    Args:
      written: paths of files that hold it, named at the end.
      width: columns of the terminal; by default as many as it has.
      as_markdown: prints Markdown instead.
      has_markup: whether words in brackets are rich's; names of others may hold
        some.
    """
    console = rich.console.Console(width=width, markup=has_markup)
    if as_markdown:
      print(f'{self.markdown()}\n', flush=True)
    for part in () if as_markdown else self.parts:
      if isinstance(part, Table):
        console.print(_rich(part), highlight=False)
      elif isinstance(part, str):
        console.print(part, highlight=False, soft_wrap=True)
    if written:
      names = ', '.join(map(str, written))
      console.print(f'Written: {names}', highlight=False, soft_wrap=True)

  def write(self, folder: str | os.PathLike[str]) -> None:
    """Writes the page into a new folder, whole or not at all.

    Raises:
      OSError, ValueError: see `folders.write_whole`.
    """
    with folders.write_whole(folder) as whole:
      self.save(whole)

  def save(self, folder: pathlib.Path) -> pathlib.Path:
    """Writes the page into a folder that exists, and returns its path.

    It replaces report.md, report.json, report.html, the PNG files of the
    figures and decision.json, each whole or not at all.

    Raises:
      OSError: a file cannot be written.
    """
    texts, shown = [], []
    for part in self.parts:
      texts.append(_markdown(part))
      shown.append(texts[-1])
      if isinstance(part, _Figure):
        with files.replacing(folder / part.name) as path:
          figures.save(part.drawn, path)
        shown[-1] = figures.draw_svg(part.drawn, part.name), part.text
    if self.decision is not None:
      decision_lib.write(folder / decision_lib.FILE, self.decision)
      texts.append(str(self.decision))
      shown.append(texts[-1])
    page = web_page.render(self.title, shown)
    for name, text in (FILE, '\n\n'.join(texts) + '\n'), (HTML, page):
      with files.writing(str(folder / name)):
        files.write_text(folder / name, text)
    content = {
      'title': self.title,
      'parts': [_record(part) for part in self.parts],
      'data': self.data,
      'decision': self.decision,
    }
    files.write_json(folder / JSON, plain(content))
    return folder / FILE

  def conclude(self, out: str | None) -> None:
    """Ends a command: prints the page in Markdown, writes it, and exits.

    Args:
      out: see `write`; None or '' writes nothing.

    Raises:
      SystemExit: see `decision.finish`.
      OSError, ValueError: see `write`.
    """
    print(self.markdown())
    if out:
      self.write(out)
    decision_lib.finish(self.decision)


def _fields(row: Any) -> list[str]:
  if dataclasses.is_dataclass(row):
    return [field.name for field in dataclasses.fields(row)]
  return list(row._fields)


def _markdown(part: Table | _Figure | str) -> str:
  if isinstance(part, str):
    return part
  if isinstance(part, _Figure):
    return f'![{part.text}]({part.name})'
  return part.markdown()


def _record(part: Table | _Figure | str) -> dict[str, Any]:
  """Returns a part as report.json has it; numbers of a table stay numbers."""
  if isinstance(part, str):
    return {'text': part}
  if isinstance(part, _Figure):
    return {'figure': part.name, 'text': part.text}
  found = {'columns': part.columns, 'rows': [list(row) for row in part.rows]}
  return {'title': part.title, **found, 'caption': part.caption}


def _line(cells: Iterable[str]) -> str:
  return f'| {" | ".join(cells)} |'


def _rich(table: Table) -> rich.table.Table:
  found = rich.table.Table(
    title=table.title or None, caption=table.caption or None
  )
  if table.look != 'boxed':
    found.box, found.pad_edge = rich.box.SIMPLE_HEAD, False
    found.title_justify = found.caption_justify = 'left'
    found.title_style = 'bold'
  if table.look == 'narrow':
    found.padding = 0
  for index, name in enumerate(table.columns):
    if index < table.left:
      found.add_column(name, overflow='fold')  # A name is never cut.
    else:
      found.add_column(name, justify='right')
  for index, row in enumerate(table.cells(), 1):
    if table.has_total and index == len(table.rows):
      found.add_section()
    found.add_row(*row)
  return found


def verdict(target: str, is_met: bool) -> str:
  """Returns a target in words, and whether it is met."""
  return f'target {target}, {"met" if is_met else "MISSED"}'


def plain(value: Any) -> Any:
  """Returns what JSON can hold: dicts, lists, None for what is not finite."""
  if hasattr(value, '_asdict'):
    value = value._asdict()
  if dataclasses.is_dataclass(value):
    fields = dataclasses.fields(value)
    value = {field.name: getattr(value, field.name) for field in fields}
  if hasattr(value, 'tolist'):
    value = value.tolist()
  if isinstance(value, dict):
    return {str(key): plain(one) for key, one in value.items()}
  if isinstance(value, list | tuple):
    return [plain(one) for one in value]
  if isinstance(value, float) and not math.isfinite(value):
    return None
  if value is None or isinstance(value, str | int | float):
    return value
  return str(value)
