"""Kronos: builds, profiles and verifies engines on the target."""
