"""Erasing records: from the collection, and from all that was made of it and can be found.

Start reading at `erase`: find, write down, take out, remove, certify.
"""
