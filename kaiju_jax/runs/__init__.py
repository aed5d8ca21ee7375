"""From a config to a run: what scripts and users of a wheel call."""
