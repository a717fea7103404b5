"""Stored values of slow oracles, and the script that makes them."""
