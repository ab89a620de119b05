"""Seeded generators of requests, compiled."""
