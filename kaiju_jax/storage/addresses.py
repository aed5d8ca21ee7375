"""Refuses addresses such as gs://bucket/runs and s3://… in place of paths.

pathlib would turn gs://bucket into a folder 'gs:' in the current one, where a
reader finds nothing.
"""

import os
import re

_ADDRESS = re.compile(r'[a-z][a-z0-9+.-]*://', re.IGNORECASE)


def refuse(path: str | os.PathLike[str], name: str) -> None:
  """Refuses an address in place of a path.

  Args:
    path: as the user gave it, before pathlib has changed it.
    name: the name of the field or flag, for the error.

  Raises:
    ValueError: `path` is an address.
  """
  if address := _ADDRESS.match(os.fspath(path)):
    raise ValueError(
      f'{name}: {address[0]} is an address; must be a path. Mount the bucket or'
      ' share on every host (Filestore, NFS, gcsfuse), and give the path of the'
      ' mount.'
    )
