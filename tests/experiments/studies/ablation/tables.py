"""Tables of a Markdown page."""


def rows(report: str, heading: str) -> dict[str, list[str]]:
  """The table under a heading: {first cell: the others}."""
  section = report.split(f'## {heading}')[1].split('\n## ')[0]
  cells = [
    [cell.strip() for cell in line.strip('| ').split('|')]
    for line in section.splitlines()
    if line.startswith('|')
  ]
  return {row[0]: row[1:] for row in cells[2:]}
