"""Seeded generators of requests and frees, compiled, and fragmenters made of them."""
