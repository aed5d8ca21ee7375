"""Who may read what lies in a server's folder."""

import pathlib
import stat


def of_others(folder: pathlib.Path) -> dict[str, str]:
  """Returns the modes of all that is not its owner's alone, by path."""
  modes = {path: path.lstat() for path in (folder, *sorted(folder.rglob('*')))}
  return {
    str(path.relative_to(folder)): oct(stat.S_IMODE(mode.st_mode))
    for path, mode in modes.items()
    if stat.S_IMODE(mode.st_mode)
    != (0o700 if stat.S_ISDIR(mode.st_mode) else 0o600)
  }
