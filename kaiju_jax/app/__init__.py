"""Assembles the server: its engine, replicas, folder, and drift's candidates."""
