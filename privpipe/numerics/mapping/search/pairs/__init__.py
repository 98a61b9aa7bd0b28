"""Searches on any alphabet: pairs are added where they price well, until the gap is certified."""
