"""Prints parts of reports as a terminal of some width shows them."""

import contextlib
import io

from kaiju_jax.reporting import report


def printed(*parts: report.Table | str, width: int = 80) -> str:
  """Returns what a report of these parts prints."""
  with contextlib.redirect_stdout(io.StringIO()) as file:
    report.Report().add(*parts).show(width=width)
  return file.getvalue()
