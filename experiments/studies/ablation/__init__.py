"""An ablation: the arms of one config on several seeds, and one report.

An *arm* is a named variant of an experiment: `get_config('bf16')` returns the
experiment of the arm 'bf16'.
"""
