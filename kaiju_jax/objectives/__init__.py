"""Objectives, which training steps minimize; one file per objective."""
