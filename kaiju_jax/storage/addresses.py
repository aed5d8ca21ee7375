"""Places that have no path: gs://bucket/runs, s3://…

pathlib makes of gs://bucket a folder 'gs:' in this one, and whoever reads it
finds nothing there.
"""

import os
import re

_ADDRESS = re.compile(r'[a-z][a-z0-9+.-]*://', re.IGNORECASE)


def refuse(path: str | os.PathLike, name: str) -> None:
  """Refuses an address where a path must stand.

  Args:
    path: as it was given, before pathlib has seen it.
    name: what it is called, for the error.

  Raises:
    ValueError: it is an address.
  """
  if address := _ADDRESS.match(os.fspath(path)):
    raise ValueError(
      f'{name}: {address[0]} is an address; must be a path. Mount the bucket or'
      ' share on every host (Filestore, NFS, gcsfuse), and name where it is'
      ' mounted.'
    )
