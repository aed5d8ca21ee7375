"""The environment of a Ray that one server starts for itself.

It must be set before `ray` is imported, here and in the processes that Ray
starts, which inherit it.
"""

import os
import secrets

# Ray would look for an address that other machines reach.
_LOOPBACK = {'RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER': '0'}
_QUIET = {
  'RAY_USAGE_STATS_ENABLED': '0',
  'RAY_BACKEND_LOG_LEVEL': 'warning',
  'RAY_task_events_report_interval_ms': '0',
}
# A busy machine starts slowly. Serve asks each replica how busy it is, and has
# no other of its name to give calls to.
_PATIENT = {
  'RAY_worker_register_timeout_seconds': '300',
  'RAY_health_check_timeout_ms': '60000',
  'RAY_SERVE_QUEUE_LENGTH_RESPONSE_DEADLINE_S': '5',
  'RAY_SERVE_MAX_QUEUE_LENGTH_RESPONSE_DEADLINE_S': '10',
}
# Ray would have engines run at a low priority.
_PRIORITY = {'RAY_worker_niceness': '0'}


def environment() -> dict[str, str]:
  """Returns the variables: loopback, a secret token, no statistics, few logs.

  Who reaches Ray's ports runs code as its user, and loopback is open to all
  accounts of a machine: so each call asks for the token, a given one or a new.
  """
  token = os.environ.get('RAY_AUTH_TOKEN') or secrets.token_hex(32)
  access = {'RAY_AUTH_MODE': 'token', 'RAY_AUTH_TOKEN': token}
  return {**_LOOPBACK, **_QUIET, **_PATIENT, **_PRIORITY, **access}
